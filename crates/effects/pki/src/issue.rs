//! Signs the requests of a node.
//!
//! **Rule:** a request is proof of a key and nothing else. What stands in a certificate is built from names that were checked,
//! never copied from the request.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_plan::certificates::{Authority, CsrBundle, Life, NodeNames, Role, SignedBundle};
use rcgen::{
    CertificateSigningRequestParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKey, PublicKeyData, SanType,
};
use rustls::pki_types::CertificateSigningRequestDer;

use crate::authority::{Authorities, later, serial, set_life};
use crate::request::params;

/// How long the certificates of nodes hold unless something else is asked for.
pub const LEAF_DAYS: u32 = 90;

/// Certificates hold from a little earlier, for clocks that are behind, and for those that were ahead when they were made: an hour,
/// as clocks differ that disagree about summer time, and a little more.
pub const BACKDATED: Duration = Duration::from_mins(90);

/// Longest life that is given: what a year and a bit of operators forget.
const DAYS_MAX: u32 = 3650;

/// Bytes of a P-256 public key: a mark and two coordinates.
const P256_BYTES: usize = 65;

/// What may be signed.
#[derive(Debug, Clone, Copy)]
pub struct Policy<'a> {
    /// How long the certificates hold.
    pub days: u32,
    /// What the cluster file declares for this node. Without it, whoever calls has shown the request to someone.
    pub allowed: Option<&'a NodeNames>,
}

/// What a node asks for, with requests that prove its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The names and addresses.
    pub names: NodeNames,
    keys: [PublicKey; 4],
}

/// Reads what is asked for, and refuses what no `quorate ca csr` would ask.
pub fn read_requests(bundle: &CsrBundle) -> Result<Asked, Fault> {
    let [peer, client, agent, admin] = Role::ALL.map(|role| read_one(bundle, role));
    let found = [peer?, client?, agent?, admin?];
    let [(_, dns, ips), ..] = &found;
    let peer_name = quorate_plan::certificates::peer_hostname(&bundle.token).to_ascii_lowercase();
    let ips_shown: Vec<String> = ips.iter().map(ToString::to_string).collect();
    let hosts = dns.iter().filter(|name| **name != peer_name).chain(&ips_shown).map(String::as_str);
    let names = NodeNames::new(&bundle.token, &bundle.name, hosts)?;
    for (role, (_, dns, ips)) in Role::ALL.into_iter().zip(&found) {
        if *dns != names.dns_of(role) || *ips != names.ips_of(role) {
            let why = format!("its {} request is for other names than the rest", role.word());
            return Err(refused(bundle, &why));
        }
    }
    Ok(Asked { names, keys: found.map(|(key, _, _)| key) })
}

/// Signs what a node asks for.
pub fn issue(
    authorities: &Authorities,
    bundle: &CsrBundle,
    policy: &Policy<'_>,
    now: Timestamp,
) -> Result<SignedBundle, Fault> {
    if bundle.token != authorities.token() {
        let why = format!("it is of cluster `{}`, and the authorities are of `{}`", bundle.token, authorities.token());
        return Err(refused(bundle, &why));
    }
    if policy.days == 0 || policy.days > DAYS_MAX {
        return Err(Fault::new(Code::Usage, format!("certificates cannot be issued for {} days", policy.days))
            .hint(format!("give 1 to {DAYS_MAX}")));
    }
    let asked = read_requests(bundle)?;
    if let Some(allowed) = policy.allowed {
        check_allowed(bundle, &asked.names, allowed)?;
    }
    let mut signed: [Vec<u8>; 4] = Default::default();
    for ((role, key), place) in Role::ALL.into_iter().zip(&asked.keys).zip(&mut signed) {
        *place = sign(authorities, &asked.names, role, key, policy.days, now)?;
    }
    let authority = |authority: Authority| authorities.get(authority).certificate.der.clone();
    Ok(SignedBundle::new(&bundle.token, &bundle.name, authority, signed))
}

fn check_allowed(bundle: &CsrBundle, asked: &NodeNames, allowed: &NodeNames) -> Result<(), Fault> {
    if (&asked.token, &asked.name) != (&allowed.token, &allowed.name) {
        let why = format!("the cluster file is of `{}` and the member is `{}`", allowed.token, allowed.name);
        return Err(refused(bundle, &why));
    }
    let foreign = asked.dns.difference(&allowed.dns).cloned();
    let foreign: Vec<String> = foreign.chain(asked.ips.difference(&allowed.ips).map(ToString::to_string)).collect();
    match foreign.is_empty() {
        true => Ok(()),
        false => {
            let list = foreign.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            Err(refused(bundle, &format!("the cluster file does not declare {list} for it")))
        }
    }
}

fn sign(
    authorities: &Authorities,
    names: &NodeNames,
    role: Role,
    key: &PublicKey,
    days: u32,
    now: Timestamp,
) -> Result<Vec<u8>, Fault> {
    let fail = |error: rcgen::Error| Fault::new(Code::Internal, "cannot sign a certificate").caused_by(error);
    let authority = authorities.get(role.authority());
    let end = authority.certificate.life.until;
    let until = later(now, Duration::from_secs(u64::from(days) * 86_400)).min(end);
    if until <= now {
        let attempt =
            format!("cannot sign for `{}`: the authority `{}` has ended", names.name, role.authority().word());
        return Err(
            Fault::new(Code::CertificateExpired, attempt).hint("make new authorities, and bring them to every node")
        );
    }
    let mut params = params(names, role).map_err(fail)?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.serial_number = Some(serial()?);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match role.serves() {
        true => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        false => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    params.use_authority_key_identifier_extension = true;
    set_life(&mut params, Life { from: now.checked_sub(BACKDATED).unwrap_or(now), until });
    let signed = params.signed_by(key, &authority.issuer).map_err(fail)?;
    Ok(signed.der().to_vec())
}

type Read = (PublicKey, BTreeSet<String>, BTreeSet<IpAddr>);

fn read_one(bundle: &CsrBundle, role: Role) -> Result<Read, Fault> {
    let der = CertificateSigningRequestDer::from(bundle.request(role));
    let word = role.word();
    let request = CertificateSigningRequestParams::from_der(&der).map_err(|error| {
        refused(bundle, &format!("its {word} request cannot be read, or was not signed with its own key"))
            .caused_by(error)
    })?;
    let key = request.public_key;
    if *key.algorithm() != rcgen::PKCS_ECDSA_P256_SHA256 || key.der_bytes().len() != P256_BYTES {
        return Err(refused(bundle, &format!("its {word} key is not of P-256")));
    }
    let (mut dns, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for name in request.params.subject_alt_names {
        match name {
            SanType::DnsName(name) => {
                dns.insert(name.as_str().to_owned());
            }
            SanType::IpAddress(ip) => {
                ips.insert(ip);
            }
            _ => return Err(refused(bundle, &format!("its {word} request has names of another kind"))),
        }
    }
    Ok((key, dns, ips))
}

fn refused(bundle: &CsrBundle, why: &str) -> Fault {
    let name = bundle.name.escape_debug();
    Fault::new(Code::RequestRefused, format!("did not sign the requests of `{name}`: {why}"))
        .hint("nothing was signed; make them with `quorate ca csr` and the same cluster file")
}
