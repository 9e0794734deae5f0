//! Reads what GlusterD 2 left on a node: `etcdenv.conf` and `proxy`.
//!
//! **Rule:** the precedence is the documented one: the environment file, else the proxy file, else nothing. Whatever stands in
//! them is data; no line of them is ever run or put into an environment.

use std::collections::BTreeSet;

use super::edit::quoted;
use crate::certificates::is_host_name;
use crate::roster::check_url;

/// What a cluster is called that was taken over from GlusterD 2, on every node of it.
pub const GLUSTERD_TOKEN: &str = "glusterd";

/// Longer files were not written by GlusterD 2.
const BYTES_MAX: usize = 64 << 10;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Imported {
    /// What the node was.
    pub mode: Mode,
    /// What a person should know of it, one sentence each.
    pub notes: Vec<String>,
}

/// What a node of GlusterD 2 was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    /// A member of a cluster of several, by `etcdenv.conf`.
    Server {
        /// Its name there.
        name: String,
        /// The members, by name, with their peer URLs.
        members: Vec<(String, String)>,
    },
    /// A proxy, by `proxy`.
    Client {
        /// The members, by name, with their peer URLs.
        members: Vec<(String, String)>,
        /// Their client addresses, `HOST:2379`.
        endpoints: Vec<String>,
        /// Whether all of them are reached in the clear. Where they are not, the file does not say whom to trust.
        in_the_clear: bool,
    },
    /// Neither file is there.
    Standalone,
}

/// Reads both files; `None`: it is not there. An error is why a file that decides cannot be understood.
pub fn read_glusterd(environment: Option<&[u8]>, proxy: Option<&[u8]>) -> Result<Imported, String> {
    let mut notes = Vec::new();
    let mode = match (environment, proxy) {
        (Some(bytes), other) => {
            if other.is_some() {
                notes.push("both `etcdenv.conf` and `proxy` are there: the first one counts".to_owned());
            }
            server(bytes, &mut notes)?
        }
        (None, Some(bytes)) => client(bytes, &mut notes)?,
        (None, None) => Mode::Standalone,
    };
    Ok(Imported { mode, notes })
}

fn server(bytes: &[u8], notes: &mut Vec<String>) -> Result<Mode, String> {
    let (mut name, mut cluster) = (None, None);
    for (key, value) in pairs(bytes, "etcdenv.conf")? {
        match key {
            "ETCD_NAME" => name = Some(value),
            "ETCD_INITIAL_CLUSTER" => cluster = Some(value),
            // Always `existing`; a node that has no data says so itself.
            "ETCD_INITIAL_CLUSTER_STATE" => {}
            other => notes.push(format!("`etcdenv.conf` sets `{}`, which is not taken over", other.escape_debug())),
        }
    }
    let name = name.filter(|name| !name.is_empty()).ok_or("`etcdenv.conf` has no `ETCD_NAME`")?;
    let cluster = cluster.ok_or("`etcdenv.conf` has no `ETCD_INITIAL_CLUSTER`")?;
    let members = members(cluster)?;
    if let Some((bad, _)) = members.iter().find(|(name, _)| !is_host_name(name)) {
        return Err(format!("`{}` is no name for a node", bad.escape_debug()));
    }
    if !members.iter().any(|(known, _)| known == name) {
        return Err(format!("`ETCD_INITIAL_CLUSTER` does not name `{}`", name.escape_debug()));
    }
    Ok(Mode::Server { name: name.to_owned(), members })
}

fn client(bytes: &[u8], notes: &mut Vec<String>) -> Result<Mode, String> {
    let mut cluster = None;
    for (key, value) in pairs(bytes, "proxy")? {
        match key {
            "ETCD_INITIAL_CLUSTER" => cluster = Some(value),
            other => notes.push(format!("`proxy` sets `{}`, which is not taken over", other.escape_debug())),
        }
    }
    let mut members = members(cluster.ok_or("`proxy` has no `ETCD_INITIAL_CLUSTER`")?)?;
    let mut endpoints = Vec::new();
    for (_, url) in &members {
        let checked = check_url(url).map_err(|error| format!("`{}`: {}", url.escape_debug(), error.why))?;
        let host = checked.place.rsplit_once(':').map_or(checked.place.as_str(), |(host, _)| host).to_owned();
        let endpoint = format!("{host}:2379");
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    notes.push("the members' client port is taken to be 2379, as GlusterD 2 always used it".to_owned());
    let in_the_clear = members.iter().all(|(_, url)| url.starts_with("http://"));
    // It listed members by names that no etcd bears, or by none; what counts here is the address.
    let mut seen = BTreeSet::new();
    let usable = members.iter().all(|(name, _)| is_host_name(name) && seen.insert(name.clone()));
    if !usable {
        members.iter_mut().enumerate().for_each(|(at, (name, _))| *name = format!("server-{}", at + 1));
    }
    Ok(Mode::Client { members, endpoints, in_the_clear })
}

/// Where the things of a node lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlusterdPlaces {
    /// The data dir, the same on every node.
    pub data_dir: String,
    /// Where agents keep their state.
    pub state_dir: String,
    /// The etcd program, if not the one on the PATH.
    pub etcd_binary: Option<String>,
    /// How etcd is held, if not as usual: `strict`, `basic` or `off`.
    pub box_level: Option<String>,
}

/// The cluster file of a cluster that GlusterD 2 ran: in the clear, since it knew nothing else, and without a founding, since
/// it was founded. Every node of the cluster makes the same one.
pub fn glusterd_text(members: &[(String, String)], places: &GlusterdPlaces) -> String {
    let mut members = members.to_vec();
    members.sort();
    let line = |(name, url): &(String, String)| {
        // Checked when it was read.
        let host = url.rsplit_once(':').map_or(url.as_str(), |(host, _)| host);
        let (name, peer, client) = (quoted(name), quoted(url), quoted(&format!("{host}:2379")));
        let data = quoted(&places.data_dir);
        format!("  - {{name: {name}, peer-urls: [{peer}], client-urls: [{client}], data-dir: {data}}}\n")
    };
    let binary = places.etcd_binary.as_ref().map(|path| format!(", etcd-binary: {}", quoted(path)));
    let held = places.box_level.as_ref().map(|level| format!("box: {{level: {}}}\n", quoted(level)));
    format!(
        "# Taken over from GlusterD 2. It is in the clear, as it was there.\ntoken: {GLUSTERD_TOKEN}\nplaintext: true\n\
         members:\n{}agent: {{state-dir: {}{}}}\n{}",
        members.iter().map(line).collect::<String>(),
        quoted(&places.state_dir),
        binary.unwrap_or_default(),
        held.unwrap_or_default()
    )
}

/// `KEY=VALUE` lines, with blanks and empty lines as people leave them.
fn pairs<'a>(bytes: &'a [u8], file: &str) -> Result<Vec<(&'a str, &'a str)>, String> {
    if bytes.len() > BYTES_MAX {
        return Err(format!("`{file}` is too long"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| format!("`{file}` is not text"))?;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        // A file that was written over a longer one has the tail of that one: a line that is none says so.
        let (key, value) =
            line.split_once('=').ok_or_else(|| format!("line {} of `{file}` is no `KEY=VALUE`", number + 1))?;
        found.push((key.trim(), value.trim().trim_matches(['"', '\''])));
    }
    Ok(found)
}

/// `NAME=URL, NAME=URL`; the original joined them with a blank after the comma.
fn members(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, url) = match part.split_once('=') {
            Some((name, url)) => (name.trim(), url.trim()),
            // The documents show a list without names.
            None => ("", part),
        };
        check_url(url)
            .map_err(|error| format!("`{}` is no address of a member: {}", part.escape_debug(), error.why))?;
        found.push((name.to_owned(), url.to_owned()));
    }
    if found.is_empty() { Err("no member is named".to_owned()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENV: &[u8] = b"ETCD_NAME=ETCD_b\nETCD_INITIAL_CLUSTER=default=http://a:2380,ETCD_b=http://b:2380\n\
        ETCD_INITIAL_CLUSTER_STATE=existing\n";
    const PROXY: &[u8] = b"ETCD_INITIAL_CLUSTER=a=http://10.0.0.1:2380, b=http://10.0.0.2:2380\n";

    #[test]
    fn the_environment_file_comes_before_the_proxy_file_and_that_before_nothing() {
        let both = read_glusterd(Some(ENV), Some(PROXY)).unwrap();
        let Mode::Server { name, members } = both.mode else { panic!("{both:?}") };
        assert_eq!((name.as_str(), members.len()), ("ETCD_b", 2));
        assert_eq!(both.notes.len(), 1);
        let proxy = read_glusterd(None, Some(PROXY)).unwrap();
        let endpoints = vec!["10.0.0.1:2379".to_owned(), "10.0.0.2:2379".to_owned()];
        let members = [("a", "http://10.0.0.1:2380"), ("b", "http://10.0.0.2:2380")];
        let members: Vec<(String, String)> = members.map(|(name, url)| (name.to_owned(), url.to_owned())).to_vec();
        assert_eq!(proxy.mode, Mode::Client { members, endpoints, in_the_clear: true });
        assert_eq!(read_glusterd(None, None).unwrap().mode, Mode::Standalone);
    }

    #[test]
    fn a_proxy_names_its_members_somehow_and_says_whether_it_knows_whom_to_trust() {
        for (text, names, clear) in [
            ("ETCD_INITIAL_CLUSTER=http://10.0.0.1:2380,http://10.0.0.2:2380", ["server-1", "server-2"], true),
            ("ETCD_INITIAL_CLUSTER=a=http://10.0.0.1:2380,a=http://10.0.0.2:2380", ["server-1", "server-2"], true),
            ("ETCD_INITIAL_CLUSTER=a=http://10.0.0.1:2380,b=https://10.0.0.2:2380", ["a", "b"], false),
        ] {
            let Mode::Client { members, in_the_clear, .. } = read_glusterd(None, Some(text.as_bytes())).unwrap().mode
            else {
                panic!("{text}")
            };
            let named: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((named.as_slice(), in_the_clear), (names.as_slice(), clear), "{text}");
            let parsed = crate::spec::Spec::parse(glusterd_text(&members, &places()).as_bytes(), "c");
            assert!(parsed.is_ok() || !clear, "{text}");
        }
    }

    fn places() -> GlusterdPlaces {
        GlusterdPlaces {
            data_dir: "/d".to_owned(),
            state_dir: "/s".to_owned(),
            etcd_binary: Some("/e".to_owned()),
            box_level: Some("off".to_owned()),
        }
    }

    #[test]
    fn every_node_of_a_cluster_makes_the_same_file_of_it() {
        let other = b"ETCD_NAME=default\nETCD_INITIAL_CLUSTER=ETCD_b=http://b:2380, default=http://a:2380\n";
        let places = places();
        let text = |bytes: &[u8]| match read_glusterd(Some(bytes), None).unwrap().mode {
            Mode::Server { members, .. } => glusterd_text(&members, &places),
            other => panic!("{other:?}"),
        };
        assert_eq!(text(ENV), text(other));
        let (spec, _) = crate::spec::Spec::parse(text(ENV).as_bytes(), "c").map_err(|all| all.render()).unwrap();
        assert!(spec.is_plaintext() && spec.bootstrap.is_none());
        let member = spec.member("ETCD_b").unwrap();
        assert_eq!((member.peer_urls[0].as_str(), member.client_urls[0].as_str()), ("http://b:2380", "http://b:2379"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_and_what_it_reads_can_be_written(bytes: Vec<u8>, text in "(ETCD_[A-Z_]*=.*\n)*") {
            for content in [bytes.as_slice(), text.as_bytes()] {
                if let Ok(Imported { mode: Mode::Client { members, .. }, .. }) = read_glusterd(None, Some(content)) {
                    let _ = crate::spec::Spec::parse(glusterd_text(&members, &places()).as_bytes(), "c");
                }
                if let Ok(Imported { mode: Mode::Server { members, .. }, .. }) = read_glusterd(Some(content), None) {
                    let _ = crate::spec::Spec::parse(glusterd_text(&members, &places()).as_bytes(), "c");
                }
            }
        }
    }

    #[test]
    fn torn_and_foreign_files_are_refused_and_never_panic() {
        for bytes in [
            &b""[..],
            b"ETCD_NAME=x",
            b"\xff\xfe",
            b"ster=http://a:2380\nrubbish",
            b"ETCD_NAME=\nETCD_INITIAL_CLUSTER=,",
        ] {
            assert!(read_glusterd(Some(bytes), None).is_err(), "{bytes:?}");
            assert!(read_glusterd(None, Some(bytes)).is_err(), "{bytes:?}");
        }
        for end in 0..ENV.len() {
            let _ = read_glusterd(ENV.get(..end), None);
        }
    }
}
