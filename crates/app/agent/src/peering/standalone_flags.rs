//! Flags of `quorate run --standalone`: whether they can be used, and whether they agree with the node that exists.
//!
//! **Rule:** a flag is used or refused, never ignored; what is wrong with flags is reported before anything is written.

use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_plan::certificates::host_of;
use quorate_plan::peering::{ExternalFile, Newcomer};
use quorate_plan::spec::{ExternalTls, Member, Spec, duration_text};

use super::place::{Place, all};
use super::standalone::{StandaloneSettings, data_dir};
use super::store::own_in;
use crate::cluster_file;

/// What flags are compared with.
pub(super) struct Declared<'a> {
    pub(super) spec: &'a Spec,
    /// Where others reach this node.
    pub(super) address: String,
    /// Where its data lies.
    pub(super) data_dir: String,
}

impl<'a> Declared<'a> {
    /// A member of the file.
    pub(super) fn member(spec: &'a Spec, member: &Member) -> Declared<'a> {
        // In clear text, agents have addresses on loopback.
        let url = match spec.is_plaintext() {
            true => member.peer_urls.first().cloned().unwrap_or_default(),
            false => spec.agent_url_of(member),
        };
        let address = host_of(&url).unwrap_or_default().to_owned();
        Declared { spec, address, data_dir: member.data_dir.clone() }
    }

    /// A client, which no file declares.
    pub(super) fn client(spec: &'a Spec, own: &Newcomer) -> Result<Declared<'a>, Fault> {
        let data_dir = cluster_file::place(&own.data_dir)?.display().to_string();
        Ok(Declared { spec, address: own.address.clone(), data_dir })
    }

    /// The node of a folder.
    fn of(spec: &'a Spec, place: &Place) -> Result<Option<Declared<'a>>, Fault> {
        match spec.member(&place.name) {
            Some(member) => Ok(Some(Declared::member(spec, member))),
            None => own_in(&place.dir()).map(|own| Declared::client(spec, &own)).transpose(),
        }
    }
}

/// The files that flags name can be read: the node would fail later, on a file that it has written down by then.
pub(super) fn files_exist(settings: &StandaloneSettings) -> Result<(), Fault> {
    let mut named: Vec<(&str, PathBuf)> = Vec::new();
    named.extend(settings.etcd_binary.clone().map(|path| ("--etcd-binary", path)));
    if let Some(ExternalFile { external, user }) = &settings.external {
        let tls = external.tls.as_ref();
        named.extend(tls.map(|tls| ("--etcd-ca", PathBuf::from(&tls.trusted_ca_file))));
        named.extend(tls.and_then(|tls| tls.cert_file.as_ref()).map(|path| ("--etcd-cert", PathBuf::from(path))));
        named.extend(tls.and_then(|tls| tls.key_file.as_ref()).map(|path| ("--etcd-key", PathBuf::from(path))));
        named.extend(user.as_ref().map(|(_, file)| ("--etcd-password-file", PathBuf::from(file))));
    }
    for (flag, path) in named {
        let attempt = format!("`{flag} {}` cannot be read; nothing was written", path.display());
        let seen = std::fs::File::open(&path).and_then(|file| file.metadata());
        match seen {
            Ok(meta) if meta.is_file() => {}
            Ok(_) => return Err(Fault::new(Code::Usage, attempt).hint("name a file").caused_by("it is no file")),
            Err(error) => {
                return Err(Fault::new(Code::Usage, attempt)
                    .hint("correct the path, and run it again")
                    .caused_by(error));
            }
        }
    }
    Ok(())
}

/// No other node of this machine has the same data dir: a second name would be a second node on it.
pub(super) fn no_other_on(settings: &StandaloneSettings) -> Result<(), Fault> {
    let wanted = std::path::absolute(data_dir(settings)?).unwrap_or(data_dir(settings)?);
    for (place, _) in all(&settings.state_dir)? {
        if !place.file().is_file() {
            continue;
        }
        let (spec, _) = cluster_file::read(&place.file())?;
        let own = Declared::of(&spec, &place)?;
        if own.is_some_and(|own| Path::new(&own.data_dir) == wanted) {
            let (name, data) = (&place.name, wanted.display());
            let hint = format!(
                "leave `--name` out, or run it with `--name {name}`; a second node needs a `--data-dir` and a `--state-dir` of its own"
            );
            let attempt = format!("the node of this machine is `{name}`, and `{data}` is its data dir");
            return Err(Fault::new(Code::Usage, attempt).hint(hint));
        }
    }
    Ok(())
}

/// Flags that contradict the file of a node that exists are an error: neither is ignored.
pub(super) fn flags_agree(settings: &StandaloneSettings, place: &Place) -> Result<(), Fault> {
    let (spec, _) = cluster_file::read(&place.file())?;
    let Some(own) = Declared::of(&spec, place)? else { return Ok(()) };
    let hint = "leave the flags out, or change the file: `quorate cluster apply FILE`";
    differences(settings, &own, (&format!("`{}`", place.file().display()), "the file has"), hint)
}

/// The same for what GlusterD 2 left: its files decide, and a flag that they leave no room for would be ignored.
pub(super) fn flags_fit(settings: &StandaloneSettings, own: &Declared<'_>) -> Result<(), Fault> {
    let what = format!("what GlusterD 2 left in `{}`", settings.glusterd_dir.display());
    let hint = "nothing was written; leave the flags out, and change the node once it runs";
    differences(settings, own, (&what, "it has"), hint)
}

fn differences(settings: &StandaloneSettings, own: &Declared<'_>, what: (&str, &str), hint: &str) -> Result<(), Fault> {
    let ((what, has), spec) = (what, own.spec);
    let mut differ: Vec<(&str, String, String)> = Vec::new();
    let mut compare = |flag, given: Option<String>, declared: Option<String>| {
        if let Some(given) = given.filter(|given| Some(given) != declared.as_ref()) {
            differ.push((flag, given, declared.unwrap_or_else(|| "nothing".to_owned())));
        }
    };
    compare("--listen", settings.address.clone(), Some(own.address.clone()));
    let shown = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
    compare("--data-dir", settings.data_dir.as_ref().map(shown), Some(own.data_dir.clone()));
    compare("--etcd-binary", settings.etcd_binary.as_ref().map(shown), spec.agent.etcd_binary.clone());
    let timeout = spec.maintenance.join_timeout;
    compare("--join-timeout", settings.join_timeout.map(duration_text), Some(duration_text(timeout)));
    let level = spec.box_.level.map(|level| level.name().to_owned());
    compare("--box", settings.box_level.clone(), level);
    let endpoints = |external: &quorate_plan::spec::External| external.endpoints.join(",");
    let given = settings.external.as_ref().map(|given| endpoints(&given.external));
    compare("--etcd-endpoints", given, spec.external.as_ref().map(endpoints));
    let namespace = spec.external.as_ref().map(|external| external.namespace.clone());
    compare("--etcd-namespace", settings.namespace.clone(), namespace);
    let given = settings.external.as_ref();
    let (given_tls, tls) = (
        given.and_then(|given| given.external.tls.clone()),
        spec.external.as_ref().and_then(|known| known.tls.clone()),
    );
    let ca = |tls: &Option<ExternalTls>| tls.as_ref().map(|tls| tls.trusted_ca_file.clone());
    compare("--etcd-ca", ca(&given_tls), ca(&tls));
    let cert = |tls: &Option<ExternalTls>| tls.as_ref().and_then(|tls| tls.cert_file.clone());
    compare("--etcd-cert", cert(&given_tls), cert(&tls));
    let key = |tls: &Option<ExternalTls>| tls.as_ref().and_then(|tls| tls.key_file.clone());
    compare("--etcd-key", key(&given_tls), key(&tls));
    let user = given.and_then(|given| given.user.clone());
    compare("--etcd-user", user.as_ref().map(|(name, _)| name.clone()), spec.agent.etcd_user.clone());
    compare("--etcd-password-file", user.map(|(_, file)| file), spec.agent.etcd_password_file.clone());
    if differ.is_empty() {
        return Ok(());
    }
    let each = differ.iter().map(|(flag, given, declared)| format!("`{flag} {given}`, {has} `{declared}`"));
    Err(Fault::new(Code::Usage, format!("the flags differ from {what}: {}", each.collect::<Vec<_>>().join("; ")))
        .hint(hint))
}
