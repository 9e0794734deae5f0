//! The file that a cluster by hand lives by: made once, then one line more or one line less.
//!
//! **Invariant:** an edit changes the list of members by the one that it is about, and nothing else; it is read back and compared
//! before it is handed out. A founding that has been used is dropped with the first newcomer, who could only misunderstand it.

use quorate_faults::{Code, Fault};
use serde::{Deserialize, Serialize};

use crate::spec::{External, ExternalTls, Member, Spec};

/// Who is to be a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Newcomer {
    /// Its name.
    pub name: String,
    /// Where the others reach it: an IP address or a host name.
    pub address: String,
    /// Its data dir.
    pub data_dir: String,
}

/// What a file of one member is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandaloneFile {
    /// The cluster's token.
    pub token: String,
    /// The one member.
    pub member: Newcomer,
    /// Where agents keep their state.
    pub state_dir: String,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<String>,
    /// How long a newcomer may take, if not the usual time.
    pub join_timeout: Option<String>,
    /// How etcd is held, if not as usual: `strict`, `basic` or `off`.
    pub box_level: Option<String>,
    /// Where etcd is, if it is somebody else's.
    pub external: Option<ExternalFile>,
}

/// An etcd that others run, and as whom it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalFile {
    /// Where it is.
    pub external: External,
    /// The user, and the file with its password.
    pub user: Option<(String, String)>,
}

/// Why a file was not edited.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// Its members do not stand one on each line.
    #[error("its members do not stand one on each line, as `quorate run --standalone` writes them")]
    Shape,
    /// Another member has the name or the address.
    #[error("{0}")]
    Taken(String),
    /// There is none of this name.
    #[error("it declares no member `{0}`")]
    Missing(String),
    /// What came of it is no cluster file.
    #[error("the file would have mistakes: {0}")]
    Mistakes(String),
    /// What came of it says something else as well.
    #[error("the edit would change more than the one member")]
    Other,
}

impl EditError {
    /// The same as a fault.
    pub fn fault(self) -> Fault {
        Fault::new(Code::PeerFileEdit, "the cluster file cannot be edited")
            .hint("change it by hand and give it to all nodes: `quorate cluster apply FILE`")
            .caused_by(self)
    }
}

const MEMBERS: &str = "members:";
const ITEM: &str = "  - {";
const BOOTSTRAP: &str = "bootstrap:";
const TLS: &str = "https";

/// The text of a file of one member.
pub fn standalone_text(file: &StandaloneFile) -> String {
    let StandaloneFile { token, member, state_dir, etcd_binary, join_timeout, box_level, external } = file;
    let binary = etcd_binary.as_ref().map(|path| format!(", etcd-binary: {}", quoted(path))).unwrap_or_default();
    let timeout = join_timeout
        .as_ref()
        .map(|text| format!("maintenance: {{join-timeout: {}}}\n", quoted(text)))
        .unwrap_or_default();
    let held = box_level.as_ref().map(|level| format!("box: {{level: {}}}\n", quoted(level))).unwrap_or_default();
    let founding = if external.is_some() { String::new() } else { format!("{BOOTSTRAP} {{id: 1}}\n") };
    let elsewhere = external.as_ref().map(|known| external_line(&known.external)).unwrap_or_default();
    let user = external.as_ref().and_then(|known| known.user.as_ref());
    let user = user.map(|(name, file)| format!(", etcd-user: {}, etcd-password-file: {}", quoted(name), quoted(file)));
    let user = user.unwrap_or_default();
    let pki = quoted(&format!("{}/{{name}}/pki", state_dir.trim_end_matches('/')));
    format!(
        "# Written by `quorate run --standalone`. `quorate peer` adds and removes members, one line for each.\n\
         token: {}\n{founding}{MEMBERS}\n{}tls: {{dir: {pki}}}\n{elsewhere}agent: {{state-dir: {}{binary}{user}}}\n\
         {timeout}{held}",
        quoted(token),
        line(member, TLS),
        quoted(state_dir)
    )
}

fn external_line(external: &External) -> String {
    let External { endpoints, namespace, tls } = external;
    let urls: Vec<String> = endpoints.iter().map(|url| quoted(url)).collect();
    let files = tls.as_ref().map(|ExternalTls { trusted_ca_file, cert_file, key_file }| {
        let own = [("cert-file", cert_file), ("key-file", key_file)];
        let own = own.iter().filter_map(|(key, path)| Some(format!(", {key}: {}", quoted(path.as_deref()?))));
        format!(", tls: {{trusted-ca-file: {}{}}}", quoted(trusted_ca_file), own.collect::<String>())
    });
    let (urls, namespace) = (urls.join(", "), quoted(namespace));
    format!("etcd: {{mode: external, endpoints: [{urls}], namespace: {namespace}{}}}\n", files.unwrap_or_default())
}

/// The file with one more member. The same one again changes nothing.
pub fn with_member(text: &str, newcomer: &Newcomer) -> Result<String, EditError> {
    let before = parse(text)?;
    if let Some(known) = before.member(&newcomer.name) {
        let same = text.contains(&line(newcomer, scheme(&before)));
        return match same {
            true => Ok(text.to_owned()),
            false => {
                Err(EditError::Taken(format!("`{}` is the name of another member, at {}", known.name, place(known))))
            }
        };
    }
    let host = url_host(&newcomer.address);
    let at = |member: &&Member| member.peer_urls.iter().any(|url| url.contains(&host));
    if let Some(known) = before.members.iter().find(at) {
        return Err(EditError::Taken(format!("`{}` is the address of member `{}`", newcomer.address, known.name)));
    }
    let (head, items, tail) = split(text)?;
    let head: String =
        head.iter().filter(|line| !line.starts_with(BOOTSTRAP)).map(|line| format!("{line}\n")).collect();
    let tail: String =
        tail.iter().filter(|line| !line.starts_with(BOOTSTRAP)).map(|line| format!("{line}\n")).collect();
    let items: String = items.iter().map(|line| format!("{line}\n")).collect();
    let edited = format!("{head}{items}{}{tail}", line(newcomer, scheme(&before)));
    let after = parse(&edited)?;
    let grown = after.members.split_last().is_some_and(|(last, others)| {
        last.name == newcomer.name && last.data_dir == newcomer.data_dir && *others == *before.members
    });
    same_otherwise(before, after, grown)?;
    Ok(edited)
}

/// The member that a node would be, by a file that declares it or not.
pub fn member_of(text: &str, newcomer: &Newcomer) -> Result<Member, EditError> {
    let declared = parse(text)?.member(&newcomer.name).cloned();
    let made = || parse(&with_member(text, newcomer)?)?.member(&newcomer.name).cloned().ok_or(EditError::Other);
    declared.map_or_else(made, Ok)
}

/// The file with one member less. One that is not there changes nothing.
pub fn without_member(text: &str, name: &str) -> Result<String, EditError> {
    let before = parse(text)?;
    let Some(at) = before.members.iter().position(|member| member.name == name) else {
        return Err(EditError::Missing(name.to_owned()));
    };
    let (head, items, tail) = split(text)?;
    if items.len() != before.members.len() {
        return Err(EditError::Shape);
    }
    let kept = items.iter().enumerate().filter(|(number, _)| *number != at).map(|(_, line)| line);
    let lines = head.iter().filter(|line| !line.starts_with(BOOTSTRAP)).chain(kept);
    let lines = lines.chain(tail.iter().filter(|line| !line.starts_with(BOOTSTRAP)));
    let edited: String = lines.map(|line| format!("{line}\n")).collect();
    let after = parse(&edited)?;
    let mut wanted = before.members.clone();
    wanted.remove(at);
    let shrunk = after.members == wanted;
    same_otherwise(before, after, shrunk)?;
    Ok(edited)
}

fn same_otherwise(before: Spec, after: Spec, members: bool) -> Result<(), EditError> {
    let rest = |spec: Spec| Spec { members: Vec::new(), bootstrap: None, ..spec };
    if members && rest(before) == rest(after) { Ok(()) } else { Err(EditError::Other) }
}

fn parse(text: &str) -> Result<Spec, EditError> {
    let parsed = Spec::parse(text.as_bytes(), "the cluster file");
    parsed.map(|(spec, _)| spec).map_err(|mistakes| EditError::Mistakes(mistakes.fault().to_string()))
}

type Parts<'a> = (Vec<&'a str>, Vec<&'a str>, Vec<&'a str>);

/// What stands before the members, they, and what stands after them.
fn split(text: &str) -> Result<Parts<'_>, EditError> {
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.trim_end() == MEMBERS).ok_or(EditError::Shape)?;
    let (head, rest) = lines.split_at(at + 1);
    let count = rest.iter().take_while(|line| line.starts_with(ITEM) && line.trim_end().ends_with('}')).count();
    let (items, tail) = rest.split_at(count);
    // What goes on below would be a member of another shape.
    let whole = !items.is_empty() && tail.first().is_none_or(|line| !line.starts_with([' ', '-']));
    if whole { Ok((head.to_vec(), items.to_vec(), tail.to_vec())) } else { Err(EditError::Shape) }
}

fn scheme(spec: &Spec) -> &'static str {
    if spec.is_plaintext() { "http" } else { TLS }
}

fn line(member: &Newcomer, scheme: &str) -> String {
    let Newcomer { name, address, data_dir } = member;
    // Also on loopback, which every certificate names: so clients on the node itself have one URL, whatever its role is.
    let host = if address.contains(':') { format!("[{address}]") } else { address.clone() };
    let listen = [host.as_str(), "127.0.0.1"].map(|host| quoted(&format!("{scheme}://{host}:2379"))).join(", ");
    let [name, address, data_dir] = [name, address, data_dir].map(|text| quoted(text));
    format!("{ITEM}name: {name}, address: {address}, data-dir: {data_dir}, listen-client-urls: [{listen}]}}\n")
}

fn place(member: &Member) -> String {
    member.peer_urls.first().map_or_else(|| "an unknown address".to_owned(), |url| format!("`{url}`"))
}

fn url_host(address: &str) -> String {
    if address.contains(':') { format!("//[{address}]:") } else { format!("//{address}:") }
}

/// What is quoted for JSON is quoted for YAML.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newcomer(number: u8) -> Newcomer {
        Newcomer {
            name: format!("n{number}"),
            address: format!("10.0.0.{number}"),
            data_dir: "/var/lib/etcd".to_owned(),
        }
    }

    fn one() -> String {
        standalone_text(&StandaloneFile {
            token: "t".to_owned(),
            member: newcomer(1),
            state_dir: "/var/lib/quorate".to_owned(),
            etcd_binary: Some("/usr/bin/etcd".to_owned()),
            join_timeout: Some("20s".to_owned()),
            box_level: Some("off".to_owned()),
            external: None,
        })
    }

    #[test]
    fn a_file_for_an_etcd_of_others_says_so_and_grows_the_same_way() {
        let tls = ExternalTls {
            trusted_ca_file: "/ca".to_owned(),
            cert_file: Some("/c".to_owned()),
            key_file: Some("/k".to_owned()),
        };
        let external = External {
            endpoints: vec!["https://e1:2379".to_owned(), "https://e2:2379".to_owned()],
            namespace: "quorate/a/".to_owned(),
            tls: Some(tls),
        };
        let user = Some(("quorate".to_owned(), "/etc/quorate/etcd.password".to_owned()));
        let text = standalone_text(&StandaloneFile {
            token: "t".to_owned(),
            member: newcomer(1),
            state_dir: "/var/lib/quorate".to_owned(),
            etcd_binary: None,
            join_timeout: None,
            box_level: None,
            external: Some(ExternalFile { external: external.clone(), user }),
        });
        let spec = parse(&text).unwrap();
        assert_eq!((spec.external.as_ref(), spec.bootstrap), (Some(&external), None));
        assert_eq!(spec.agent.etcd_user.as_deref(), Some("quorate"));
        let two = with_member(&text, &newcomer(2)).unwrap();
        assert_eq!(without_member(&two, "n2").unwrap(), text);
    }

    #[test]
    fn a_file_grows_by_one_line_and_shrinks_by_one_and_forgets_its_founding() {
        let text = one();
        let spec = parse(&text).unwrap();
        assert_eq!(spec.founding_ids().unwrap().members.len(), 1);
        assert_eq!(spec.state_dir_of("n1"), "/var/lib/quorate/n1");
        assert_eq!(spec.tls_files().unwrap().peer.key_file, "/var/lib/quorate/{name}/pki/peer.key");
        let two = with_member(&text, &newcomer(2)).unwrap();
        assert_eq!(two.lines().count(), text.lines().count(), "one line more, and no founding:\n{two}");
        assert_eq!(parse(&two).unwrap().bootstrap, None);
        assert_eq!(with_member(&two, &newcomer(2)).unwrap(), two, "twice is once");
        let three = with_member(&two, &newcomer(3)).unwrap();
        assert_eq!(without_member(&three, "n3").unwrap(), two);
        let names: Vec<String> =
            parse(&without_member(&three, "n1").unwrap()).unwrap().members.into_iter().map(|m| m.name).collect();
        assert_eq!(names, ["n2", "n3"]);
        assert_eq!(member_of(&two, &newcomer(2)).unwrap(), parse(&two).unwrap().members[1]);
        assert_eq!(member_of(&two, &newcomer(3)).unwrap(), parse(&three).unwrap().members[2]);
        let listens = &parse(&two).unwrap().members[1].listen_client_urls;
        assert_eq!(*listens, ["https://10.0.0.2:2379", "https://127.0.0.1:2379"]);
    }

    #[test]
    fn a_file_in_the_clear_stays_in_the_clear() {
        let text = "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n";
        let two = with_member(text, &newcomer(2)).unwrap();
        let spec = parse(&two).unwrap();
        assert_eq!(spec.members[1].listen_client_urls, ["http://10.0.0.2:2379", "http://127.0.0.1:2379"]);
        assert_eq!(with_member(&two, &newcomer(2)).unwrap(), two, "twice is once");
    }

    #[test]
    fn names_and_addresses_are_taken_once() {
        let two = with_member(&one(), &newcomer(2)).unwrap();
        let other = Newcomer { address: "10.0.0.9".to_owned(), ..newcomer(2) };
        assert!(matches!(with_member(&two, &other), Err(EditError::Taken(_))));
        let same_place = Newcomer { name: "n9".to_owned(), ..newcomer(2) };
        assert!(matches!(with_member(&two, &same_place), Err(EditError::Taken(_))));
        // 10.0.0.1 is no part of 10.0.0.11.
        assert!(with_member(&two, &newcomer(11)).is_ok());
        assert_eq!(without_member(&two, "n7"), Err(EditError::Missing("n7".to_owned())));
        assert!(matches!(without_member(&one(), "n1"), Err(EditError::Mistakes(_))), "the last one stays");
    }

    #[test]
    fn what_a_person_wrote_in_another_shape_is_left_alone() {
        let text = "token: t\nplaintext: true\nmembers: [{name: n1, address: 10.0.0.1}]\n";
        assert_eq!(with_member(text, &newcomer(2)), Err(EditError::Shape));
        let text = "token: t\nplaintext: true\nmembers:\n  - {name: n1, address: 10.0.0.1}\n  - name: n3\n    address: 10.0.0.3\n";
        assert_eq!(with_member(text, &newcomer(2)), Err(EditError::Shape));
    }

    #[test]
    fn no_name_can_smuggle_anything_into_the_file() {
        for bad in ["a, wal-dir: /x", "a\", wal-dir: \"/x", "a}\nagent: {state-dir: /x}", "{name}", "a\u{2028}b"] {
            let newcomer = Newcomer { name: bad.to_owned(), ..newcomer(2) };
            // Either it stands for itself, or it is refused.
            if let Ok(edited) = with_member(&one(), &newcomer) {
                assert_eq!(parse(&edited).unwrap().members[1].name, bad);
            }
        }
    }
}
