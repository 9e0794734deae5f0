//! The keys of a node, and the requests that are signed with them.
//!
//! **Invariant:** a key that is there is used again. New keys, where they are asked for, wait beside the old ones under another
//! name until their certificates are installed.

use std::path::Path;

use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{CsrBundle, NodeNames, Role};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

use crate::files::{self, Folder, SECRET};
use crate::install::{finish_swaps, next};
use crate::keys;

/// Which keys the requests are made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Those that are there; missing ones are made.
    Keep,
    /// New ones, which replace those that are there when their certificates are installed.
    Fresh,
}

/// What asking came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeRequests {
    /// What to have signed.
    pub bundle: CsrBundle,
    /// The keys that were made.
    pub made: Vec<Role>,
}

/// Makes the keys of a node in `dir` where they are missing, and asks for its certificates.
pub fn ensure_requests(dir: &Path, names: &NodeNames, which: Keys) -> Result<MadeRequests, Fault> {
    let folder = Folder::open(dir, 0o755)?;
    finish_swaps(&folder)?;
    let mut made = Vec::new();
    let mut requests = Vec::new();
    for role in Role::ALL {
        let (name, there) = (role.key_file(), files::read_if_there(&folder.at(&role.key_file()))?);
        let (name, there) = match (which, there) {
            (Keys::Fresh, Some(_)) => (next(&name), None),
            (Keys::Keep | Keys::Fresh, there) => (name, there),
        };
        let key = match there {
            Some(bytes) => keys::decode(&bytes, &folder.at(&name), None)?,
            None => {
                let key = keys::generate()?;
                folder.write(&name, keys::encode(&key, None)?.as_bytes(), SECRET)?;
                made.push(role);
                key
            }
        };
        requests.push(request(names, role, &key)?);
    }
    let mut requests = requests.into_iter();
    let bundle = CsrBundle::new(&names.token, &names.name, |_| requests.next().unwrap_or_default());
    Ok(MadeRequests { bundle, made })
}

fn request(names: &NodeNames, role: Role, key: &KeyPair) -> Result<Vec<u8>, Fault> {
    let fail = |error: rcgen::Error| Fault::new(Code::Internal, "cannot make a request").caused_by(error);
    let params = params(names, role).map_err(fail)?;
    let request = params.serialize_request(key).map_err(fail)?;
    Ok(request.der().to_vec())
}

/// Whose a certificate is, and what it is for.
pub(crate) fn params(names: &NodeNames, role: Role) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, names.token.as_str());
    params.distinguished_name.push(DnType::OrganizationalUnitName, format!("{} of {}", role.word(), names.name));
    if let Some(name) = names.common_name(role) {
        params.distinguished_name.push(DnType::CommonName, name);
    }
    for name in names.dns_of(role) {
        params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
    }
    params.subject_alt_names.extend(names.ips_of(role).into_iter().map(SanType::IpAddress));
    Ok(params)
}
