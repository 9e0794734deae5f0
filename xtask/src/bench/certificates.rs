//! Keys and certificates for servers that are measured.

use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use quorate_pki::{Authorities, Keys, NodeNames, Policy, ensure_authorities, ensure_installed, ensure_requests, issue};

/// Those of a node in `to`, by authorities that lie in `ca` and are made by the first call.
pub(super) fn certify(ca: &Path, cluster: &str, (name, address): (&str, &str), to: &Path) -> Result<()> {
    let now = Timestamp::now();
    ensure_authorities(ca, cluster, None, now)?;
    let names = NodeNames::new(cluster, name, [address])?;
    std::fs::create_dir_all(to)?;
    let bundle = ensure_requests(to, &names, Keys::Keep)?.bundle;
    let signed = issue(&Authorities::open(ca, None)?, &bundle, &Policy { days: 90, allowed: None }, now)?;
    Ok(ensure_installed(to, &names, &signed, now).map(drop)?)
}
