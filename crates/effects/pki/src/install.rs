//! Puts signed certificates into the folder of a node.
//!
//! **Invariant:** what is installed fits: its key lies here, the authority beside it signed it, and it names what the cluster
//! file declares. A renewal with the same key replaces one file, so there is no moment without a pair. New keys wait as
//! `*.next` until both halves are durable; a swap that was cut off is finished before anything else is done here.

use std::path::Path;

use jiff::Timestamp;
use quorate_faults::{Code, Fault};
use quorate_host::durable::SPENT_MARK;
use quorate_plan::certificates::{Authority, NodeNames, Role, SignedBundle, pem};
use rcgen::PublicKeyData;

use crate::files::{self, Folder, PUBLIC, SECRET};
use crate::keys;
use crate::read::{Certificate, parse_pem};
use crate::revoke::{check_bundled, ensure_newer};

/// What installing came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The certificates that are new here.
    pub replaced: Vec<Role>,
    /// The first end among all of them.
    pub until: Timestamp,
}

/// The name of a file that waits for its other half.
pub(crate) fn next(name: &str) -> String {
    format!("{name}.next")
}

/// The name of what a file held before the last change.
fn previous(name: &str) -> String {
    format!("{name}.previous")
}

/// Installs them in `dir`, whose keys they were made for. The pair from before stays beside it.
pub fn ensure_installed(
    dir: &Path,
    names: &NodeNames,
    bundle: &SignedBundle,
    now: Timestamp,
) -> Result<Installed, Fault> {
    if (&bundle.token, &bundle.name) != (&names.token, &names.name) {
        let (name, token) = (bundle.name.escape_debug(), bundle.token.escape_debug());
        return Err(refused(&format!(
            "they are of `{name}` in cluster `{token}`, and this is `{}` in `{}`",
            names.name, names.token
        )));
    }
    let folder = Folder::open(dir, 0o755)?;
    finish_swaps(&folder)?;
    let [peer, client, agent] = Authority::ALL.map(|authority| check_authority(&folder, bundle, authority, now));
    let authorities = [peer?, client?, agent?];
    let mut leaves = Vec::new();
    for role in Role::ALL {
        let authority = authorities.iter().find(|(found, _)| *found == role.authority());
        let authority = authority.map(|(_, certificate)| certificate);
        leaves.push((role, check_leaf(names, bundle, role, authority, now)?));
    }
    // All of it is decided before the first byte is written.
    let mut writes = Vec::new();
    for (role, leaf) in &leaves {
        writes.push((*role, leaf, half(&folder, *role, leaf)?));
    }
    for (authority, certificate) in &authorities {
        if let Some(list) = bundle.list(*authority) {
            check_bundled(&folder, *authority, list, certificate)?;
        }
    }
    let mut replaced = Vec::new();
    for (authority, certificate) in &authorities {
        if files::read_if_there(&folder.at(&authority.cert_file()))?.is_none() {
            let all = std::iter::once(&certificate.der).chain(bundle.others(*authority));
            let text: String = all.map(|der| pem(der)).collect();
            folder.write(&authority.cert_file(), text.as_bytes(), PUBLIC)?;
        }
        // Before the certificates: nothing is opened with them that does not know whom to refuse.
        if let Some(list) = bundle.list(*authority) {
            ensure_newer(&folder, *authority, list)?;
        }
    }
    for (role, leaf, half) in writes {
        let text = pem(&leaf.der);
        let there = files::read_if_there(&folder.at(&role.cert_file()))?;
        match half {
            Half::InUse if there.as_deref() == Some(text.as_bytes()) => continue,
            Half::InUse => {
                keep_previous(&folder, role)?;
                folder.write(&role.cert_file(), text.as_bytes(), PUBLIC)?;
            }
            Half::Next => {
                keep_previous(&folder, role)?;
                folder.write(&next(&role.cert_file()), text.as_bytes(), PUBLIC)?;
                finish_swap(&folder, role)?;
            }
        }
        replaced.push(role);
    }
    let until = leaves.iter().map(|(_, leaf)| leaf.life.until).min().unwrap_or(now);
    Ok(Installed { replaced, until })
}

/// Copies a pair that is about to be replaced, the key first: a copy of a certificate without its key is of no use.
fn keep_previous(folder: &Folder, role: Role) -> Result<(), Fault> {
    for (name, mode) in [(role.key_file(), SECRET), (role.cert_file(), PUBLIC)] {
        if let Some(bytes) = files::read_if_there(&folder.at(&name))? {
            folder.write(&previous(&name), &bytes, mode)?;
        }
    }
    Ok(())
}

/// Puts the pair from before back where the current one does not hold yet, because it was signed by a clock that was ahead: until
/// another one is signed, the one from before is what others accept. Returns the roles that were put back.
pub fn ensure_begun(dir: &Path, now: Timestamp) -> Result<Vec<Role>, Fault> {
    let life = |name: &str| {
        let bytes = files::read_if_there(&dir.join(name)).ok().flatten()?;
        parse_pem(&bytes).ok()?.into_iter().next().map(|leaf| leaf.life)
    };
    let ahead = |role: &Role| life(&role.cert_file()).is_some_and(|life| life.from > now);
    let holds =
        |role: &Role| life(&previous(&role.cert_file())).is_some_and(|life| life.from <= now && now < life.until);
    // A folder in which all is well is not even locked.
    if !Role::ALL.iter().any(|role| ahead(role) && holds(role)) {
        return Ok(Vec::new());
    }
    let folder = Folder::open(dir, 0o755)?;
    finish_swaps(&folder)?;
    let mut back = Vec::new();
    for role in Role::ALL.into_iter().filter(|role| ahead(role) && holds(role)) {
        let read = |name: &str| files::read_if_there(&folder.at(name));
        let (cert_name, key_name) = (role.cert_file(), role.key_file());
        let (Some(cert), Some(key)) = (read(&previous(&cert_name))?, read(&previous(&key_name))?) else { continue };
        let Some(leaf) = parse_pem(&cert).ok().and_then(|chain| chain.into_iter().next()) else { continue };
        if keys::decode(&key, &folder.at(&key_name), None)?.subject_public_key_info() != leaf.public_key {
            continue;
        }
        // Both wait as a new pair does, so that there is no moment without one that fits.
        folder.write(&next(&key_name), &key, SECRET)?;
        folder.write(&next(&cert_name), &cert, PUBLIC)?;
        finish_swap(&folder, role)?;
        back.push(role);
    }
    Ok(back)
}

/// Finishes a change of keys that was cut off; for whoever is about to use the files.
pub fn ensure_swaps_finished(dir: &Path) -> Result<(), Fault> {
    let files = Role::ALL.iter().flat_map(|role| [role.cert_file(), role.key_file()]);
    let mut names = files.flat_map(|name| [next(&name), format!("{}{SPENT_MARK}", next(&name))]);
    // A folder that somebody else filled is not even locked.
    if !names.any(|name| dir.join(name).exists()) {
        return Ok(());
    }
    finish_swaps(&Folder::open(dir, 0o755)?)
}

pub(crate) fn finish_swaps(folder: &Folder) -> Result<(), Fault> {
    Role::ALL.into_iter().try_for_each(|role| finish_swap(folder, role))
}

/// Moves a waiting pair into place: the key, then its certificate. Cut off anywhere, the next call goes on.
fn finish_swap(folder: &Folder, role: Role) -> Result<(), Fault> {
    let (cert_name, key_name) = (role.cert_file(), role.key_file());
    for name in [&cert_name, &key_name] {
        folder.drop_spent(&next(name))?;
    }
    let waiting_key = files::read_if_there(&folder.at(&next(&key_name)))?;
    let waiting_cert = files::read_if_there(&folder.at(&next(&cert_name)))?;
    let key = files::read_if_there(&folder.at(&key_name))?;
    if let (Some(waiting), Some(cert)) = (&waiting_key, &waiting_cert) {
        if key.as_ref() != Some(waiting) {
            folder.write(&key_name, waiting, SECRET)?;
        }
        if files::read_if_there(&folder.at(&cert_name))?.as_ref() != Some(cert) {
            folder.write(&cert_name, cert, PUBLIC)?;
        }
    }
    if waiting_cert.is_some() {
        folder.drop_copy(&next(&cert_name))?;
    }
    // A waiting key whose certificate is still to come stays.
    let spent = waiting_key.is_some() && (waiting_cert.is_some() || waiting_key == key);
    if spent { folder.drop_copy(&next(&key_name)) } else { Ok(()) }
}

/// Which key a certificate belongs to.
enum Half {
    InUse,
    Next,
}

fn half(folder: &Folder, role: Role, leaf: &Certificate) -> Result<Half, Fault> {
    for (name, half) in [(role.key_file(), Half::InUse), (next(&role.key_file()), Half::Next)] {
        let Some(bytes) = files::read_if_there(&folder.at(&name))? else { continue };
        if keys::decode(&bytes, &folder.at(&name), None)?.subject_public_key_info() == leaf.public_key {
            return Ok(half);
        }
    }
    let word = role.word();
    Err(refused(&format!(
        "the {word} certificate belongs to another key than `{}`",
        folder.at(&role.key_file()).display()
    )))
}

fn check_authority(
    folder: &Folder,
    bundle: &SignedBundle,
    authority: Authority,
    now: Timestamp,
) -> Result<(Authority, Certificate), Fault> {
    let word = authority.word();
    let certificate = Certificate::parse(bundle.authority(authority));
    let certificate = certificate.map_err(|why| refused(&format!("of the {word}, {why}")))?;
    if !certificate.is_ca || !certificate.is_signed_by(&certificate) {
        return Err(refused(&format!("the {word} is no authority")));
    }
    check_time(&certificate, word, now)?;
    for other in bundle.others(authority) {
        let other = Certificate::parse(other).map_err(|why| refused(&format!("of another {word}, {why}")))?;
        if !other.is_ca || !other.is_signed_by(&other) {
            return Err(refused(&format!("another {word} is no authority")));
        }
    }
    let path = folder.at(&authority.cert_file());
    if let Some(bytes) = files::read_if_there(&path)? {
        let trusted = parse_pem(&bytes).unwrap_or_default();
        if !trusted.iter().any(|trusted| trusted.der == certificate.der) {
            return Err(Fault::new(
                Code::InstallOtherCa,
                format!("`{}` is another authority than the one that signed", path.display()),
            )
            .hint("nothing was changed; issue from the authorities that this node trusts"));
        }
    }
    Ok((authority, certificate))
}

fn check_leaf(
    names: &NodeNames,
    bundle: &SignedBundle,
    role: Role,
    authority: Option<&Certificate>,
    now: Timestamp,
) -> Result<Certificate, Fault> {
    let word = role.word();
    let leaf = Certificate::parse(bundle.certificate(role));
    let leaf = leaf.map_err(|why| refused(&format!("of the {word} certificate, {why}")))?;
    if !authority.is_some_and(|authority| leaf.is_signed_by(authority)) {
        return Err(refused(&format!("the {word} certificate was not signed by the {}", role.authority().word())));
    }
    check_time(&leaf, &format!("{word} certificate"), now)?;
    let hosts = names.dns_of(role).into_iter().chain(names.ips_of(role).into_iter().map(|ip| ip.to_string()));
    if let Some(host) = { hosts }.find(|host| !leaf.covers(host)) {
        return Err(refused(&format!(
            "the {word} certificate does not name `{host}`, which the cluster file declares"
        )));
    }
    if leaf.is_ca || !leaf.client_auth || (role.serves() && !leaf.server_auth) {
        return Err(refused(&format!("the {word} certificate may not be used for that")));
    }
    Ok(leaf)
}

fn check_time(certificate: &Certificate, what: &str, now: Timestamp) -> Result<(), Fault> {
    let life = certificate.life;
    if now < life.from {
        return Err(refused(&format!("the {what} holds from {}, and here it is {now:.0}", life.from)));
    }
    if now >= life.until {
        return Err(refused(&format!("the {what} ended at {}, and here it is {now:.0}", life.until)));
    }
    Ok(())
}

fn refused(why: &str) -> Fault {
    Fault::new(Code::InstallRefused, format!("did not install the certificates: {why}"))
        .hint("what was installed before is unchanged; ask again with `quorate ca csr`")
}
