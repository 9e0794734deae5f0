//! The list of revoked certificates, as a server reads it that checks certificates with OpenSSL, such as PostgreSQL.
//!
//! OpenSSL refuses every certificate whose authority has no list once it was given one, and every list from the future. While
//! authorities are rotated there are two of them and one list, so the list alone is not enough: the agent of such a server also ends
//! sessions by their serial numbers.
//!
//! **Invariant:** a server that is given a complete list rejects revoked certificates and no others.

use std::collections::BTreeSet;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use x509_parser::prelude::{CertificateRevocationList, FromDer};

use crate::files;
use crate::read::read_certificates;
use crate::revoke::{is_signed, observe_list};
use crate::tls::list_beside;

/// What is revoked, of the authority whose list lies beside a file of authorities.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Revoked {
    /// The list as PEM; `None`: it does not cover every authority in the file, or begins in the future.
    pub list: Option<String>,
    /// The serial numbers of revoked certificates, in decimal.
    pub serials: BTreeSet<String>,
}

/// Reads the list beside a file of authorities. Nothing is revoked where there never was a list; one that was there and is gone is a
/// fault.
pub fn read_revoked(authorities: &Path, now: Timestamp) -> Result<Revoked, Fault> {
    if list_beside(authorities).is_none() {
        return Ok(Revoked::default());
    }
    let Some(path) = observe_list(authorities)? else { return Ok(Revoked::default()) };
    let bytes = files::read(&path).map_err(|error| Fault::io(format!("cannot read `{}`", path.display()), error))?;
    let unusable = |why: String| {
        Fault::new(
            Code::RevocationsUnusable,
            format!("cannot use the list of revoked certificates `{}`", path.display()),
        )
        .hint("make the lists again with `quorate ca revoke --refresh`")
        .caused_by(why)
    };
    let (_, list) = CertificateRevocationList::from_der(&bytes).map_err(|error| unusable(error.to_string()))?;
    let serials = list.iter_revoked_certificates().map(|one| decimal(one.raw_serial())).collect();
    let trusted = read_certificates(authorities)?;
    let covers_all = trusted.iter().all(|one| is_signed(&bytes, std::slice::from_ref(one)));
    let begun = list.last_update().timestamp() <= now.as_second();
    Ok(Revoked { list: (covers_all && begun && !trusted.is_empty()).then(|| pem(&bytes)), serials })
}

fn pem(der: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(der);
    let lines = text.as_bytes().chunks(64).map(|line| format!("{}\n", String::from_utf8_lossy(line)));
    format!("-----BEGIN X509 CRL-----\n{}-----END X509 CRL-----\n", lines.collect::<String>())
}

/// A number of any length, as servers show it.
pub(crate) fn decimal(bytes: &[u8]) -> String {
    // Little-endian decimal digits.
    let mut digits = vec![0_u8];
    for byte in bytes {
        let mut carry = u32::from(*byte);
        for digit in &mut digits {
            let value = u32::from(*digit) * 256 + carry;
            *digit = u8::try_from(value % 10).unwrap_or_default();
            carry = value / 10;
        }
        while carry > 0 {
            digits.push(u8::try_from(carry % 10).unwrap_or_default());
            carry /= 10;
        }
    }
    digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect()
}

#[cfg(test)]
mod tests {
    use quorate_plan::certificates::Authority;

    use super::*;
    use crate::authority::{Authorities, ensure_authorities};
    use crate::revoke::{IssuedCertificate, ensure_lists, ensure_revoked, read_lists};

    #[test]
    fn serial_numbers_of_any_length_are_shown_in_decimal() {
        assert_eq!(decimal(&[]), "0");
        assert_eq!(decimal(&[0, 255]), "255");
        assert_eq!(decimal(&[1, 0]), "256");
        assert_eq!(decimal(&[0xff; 20]), "1461501637330902918203684832716283019655932542975");
    }

    #[test]
    fn a_list_is_complete_only_with_every_authority_and_once_it_has_begun() {
        let now: Timestamp = "2026-11-19T00:00:00Z".parse().unwrap();
        let (root, later) = (tempfile::tempdir().unwrap(), now + jiff::SignedDuration::from_secs(1));
        let (node, file) = (root.path().join("node"), root.path().join("node").join("peer-ca.crt"));
        std::fs::DirBuilder::new().create(&node).unwrap();
        let made = |name: &str| {
            let dir = root.path().join(name);
            ensure_authorities(&dir, name, None, now).unwrap();
            let ca = Authorities::open(&dir, None).unwrap();
            (std::fs::read(dir.join(Authority::Peer.cert_file())).unwrap(), dir, ca)
        };
        let ((old, dir, ca), (new, _, _)) = (made("old"), made("new"));
        let put = |bytes: &[u8]| std::io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), bytes).unwrap();
        put(&old);
        assert_eq!(read_revoked(&file, now).unwrap(), Revoked::default(), "there never was a list");
        let one = IssuedCertificate {
            authority: Authority::Peer,
            serial: "0100".into(),
            name: "n1".into(),
            what: "peer".into(),
            until: later,
        };
        ensure_revoked(&dir, &ca, &[one], now).unwrap();
        for authority in Authority::ALL {
            let path = node.join(authority.cert_file());
            if !path.exists() {
                let bytes = std::fs::read(dir.join(authority.cert_file())).unwrap();
                std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), &bytes).unwrap();
            }
        }
        ensure_lists(&node, &read_lists(&dir).unwrap().unwrap()).unwrap();
        let revoked = read_revoked(&file, now).unwrap();
        assert!(revoked.list.is_some_and(|pem| pem.starts_with("-----BEGIN X509 CRL-----\n")));
        assert_eq!(revoked.serials, ["256".to_owned()].into());
        let early = read_revoked(&file, now - jiff::SignedDuration::from_secs(1)).unwrap();
        assert_eq!(
            (early.list, early.serials.len()),
            (None, 1),
            "a server rejects every certificate by a list from the future"
        );
        put(&[old.as_slice(), new.as_slice()].concat());
        let rotating = read_revoked(&file, now).unwrap();
        assert_eq!(
            (rotating.list, rotating.serials.len()),
            (None, 1),
            "a server rejects every certificate of an authority without a list"
        );
        std::fs::remove_file(node.join("peer-ca.crl")).unwrap();
        assert_eq!(read_revoked(&file, now).unwrap_err().code(), Code::RevocationsMissing);
    }
}
