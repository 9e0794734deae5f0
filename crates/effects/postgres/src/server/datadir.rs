//! The data dir of a server: seen, and made by `initdb` where there is none.
//!
//! **Invariant:** a data dir has its final name only once it is whole and carries our mark; killed anywhere, the next call
//! removes what is partial and makes it again. What has no mark of ours, or another node's, is left alone.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_host::durable::{Access, Disk, DiskFile, Owner, RealDisk, is_partial_of, partial_path};
use quorate_host::process::die_with_us;
use serde::{Deserialize, Serialize};

use super::{Installation, SUPERUSER};
use crate::Outcome;

/// The file in a data dir that says whose it is.
const MARK: &str = "quorate.json";
/// A mark is a line; nothing longer is read.
const MARK_MAX: u64 = 64 << 10;
/// `initdb` takes a second or two; a machine in distress gets more.
const INITDB_LIMIT: Duration = Duration::from_secs(300);

/// Whose data it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMark {
    /// The group.
    pub group: String,
    /// The node.
    pub node: String,
}

/// What is at the place of a data dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSeen {
    /// Nothing.
    Absent,
    /// An empty directory.
    Empty,
    /// Data that was made here, of this major version.
    Ours {
        /// Whose it is.
        mark: DataMark,
        /// The major version that it is for.
        major: u32,
    },
    /// Something else, and what.
    Foreign(String),
    /// It could not be found out, and why.
    Unknown(String),
}

/// Looks at a data dir.
pub fn observe_data(dir: &Path) -> DataSeen {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return DataSeen::Absent,
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return DataSeen::Foreign("it is not a directory".to_owned());
        }
        Err(error) => return DataSeen::Unknown(error.to_string()),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>();
    let names = match names {
        Ok(names) => names,
        Err(error) => return DataSeen::Unknown(error.to_string()),
    };
    if names.iter().all(|name| name == "lost+found") {
        return DataSeen::Empty;
    }
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    if !has("PG_VERSION") {
        return DataSeen::Foreign("it holds files, and is no data dir of PostgreSQL".to_owned());
    }
    if !has(MARK) {
        return DataSeen::Foreign("it is a data dir of PostgreSQL that was not made here".to_owned());
    }
    let read = small(&dir.join(MARK)).and_then(|text| {
        let mark = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let major = small(&dir.join("PG_VERSION"))?;
        let major = major.trim().parse().map_err(|_| format!("`PG_VERSION` says `{}`", major.trim()))?;
        Ok(DataSeen::Ours { mark, major })
    });
    read.unwrap_or_else(DataSeen::Unknown)
}

fn small(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MARK_MAX).read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}

/// Makes a data dir unless it is there. `owner`: who runs the server; needed where this runs as root.
pub fn ensure_data(
    installation: &Installation,
    dir: &Path,
    mark: &DataMark,
    owner: Option<Owner>,
) -> Result<Outcome, Fault> {
    let shown = dir.display();
    let foreign = |what: String| {
        Fault::new(Code::PgForeignData, format!("`{shown}` is not this node's data: {what}"))
            .hint("name another data dir, or move this one away if nothing in it is needed")
    };
    let empty = match observe_data(dir) {
        DataSeen::Ours { mark: found, .. } if found != *mark => {
            return Err(foreign(format!("it belongs to node `{}` of group `{}`", found.node, found.group)));
        }
        DataSeen::Ours { major, .. } if major != installation.version.major => {
            let is = installation.version;
            return Err(Fault::new(Code::PgDataVersion, format!("`{shown}` is for PostgreSQL {major}, not for {is}"))
                .hint(format!(
                    "run it with PostgreSQL {major}, or let the node leave and join with an empty data dir"
                )));
        }
        DataSeen::Ours { .. } => return Ok(Outcome::AlreadyDone),
        DataSeen::Foreign(what) => return Err(foreign(what)),
        DataSeen::Unknown(why) => {
            return Err(Fault::new(Code::PgInit, format!("cannot look at the data dir `{shown}`")).caused_by(why));
        }
        DataSeen::Absent => false,
        DataSeen::Empty => true,
    };
    if owner.is_none() && rustix::process::geteuid().is_root() {
        return Err(Fault::new(Code::PgInit, "PostgreSQL does not run as root")
            .hint("name the user that it runs as with `postgres.user`"));
    }
    let (parent, partial) = places(dir)?;
    remove_left_overs(dir, &parent)?;
    if let Some(owner) = owner {
        enterable(&parent, owner)?;
    }
    RealDisk.create_dir(&partial, Access { mode: 0o700, owner })?;
    initdb(installation, &partial, owner)?;
    write_mark(&partial, mark, owner)?;
    RealDisk.sync_filesystem(&partial)?;
    if empty {
        // It holds nothing. Where it is a mount point this fails, and says so.
        rustix::fs::rmdir(dir).map_err(|errno| {
            Fault::new(Code::PgInit, format!("cannot replace the empty directory `{shown}`"))
                .hint("name a directory below it that does not exist yet")
                .caused_by(io::Error::from(errno))
        })?;
    }
    RealDisk.rename_new(&partial, dir)?;
    RealDisk.sync_dir(&parent)?;
    Ok(Outcome::Done)
}

/// Renames the data dir of a node whose server does not run to `<dir>.replaced-<stamp>`; nothing is deleted. Returns the new name;
/// `None`: there is no data.
pub fn replace_data(dir: &Path, mark: &DataMark, stamp: &str) -> Result<Option<PathBuf>, Fault> {
    match observe_data(dir) {
        DataSeen::Absent | DataSeen::Empty => return Ok(None),
        DataSeen::Ours { mark: found, .. } if found == *mark => {}
        DataSeen::Ours { .. } | DataSeen::Foreign(_) | DataSeen::Unknown(_) => {
            return Err(Fault::new(Code::PgForeignData, format!("`{}` is not this node's data", dir.display()))
                .hint("nothing of it was changed; move it away by hand if nothing in it is needed"));
        }
    }
    let (parent, _) = places(dir)?;
    for attempt in 0..100 {
        let more = if attempt == 0 { String::new() } else { format!("-{attempt}") };
        let mut name = dir.as_os_str().to_owned();
        name.push(format!(".replaced-{stamp}{more}"));
        let new = PathBuf::from(name);
        match RealDisk.rename_new(dir, &new) {
            Ok(()) => {
                RealDisk.sync_dir(&parent)?;
                return Ok(Some(new));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Fault::new(Code::Io, format!("cannot find a new name for `{}`", dir.display()))
        .hint("there are a hundred `.replaced-` names beside it: move some of them away"))
}

fn places(dir: &Path) -> Result<(PathBuf, PathBuf), Fault> {
    let places = dir.parent().map(Path::to_owned).zip(partial_path(dir, std::process::id()));
    places.filter(|_| dir.is_absolute()).ok_or_else(|| {
        Fault::new(Code::PgInit, format!("`{}` cannot be a data dir", dir.display())).hint("give an absolute path")
    })
}

fn remove_left_overs(dir: &Path, parent: &Path) -> Result<(), Fault> {
    let of = dir.file_name().unwrap_or_default();
    let failed = |error| Fault::io(format!("cannot read `{}`", parent.display()), error);
    for entry in std::fs::read_dir(parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_partial_of(&entry.file_name(), of) {
            RealDisk.remove_partial(&entry.path())?;
        }
    }
    Ok(())
}

/// Every directory on the way must let the user in.
fn enterable(parent: &Path, owner: Owner) -> Result<(), Fault> {
    use std::os::unix::fs::MetadataExt;
    for dir in parent.ancestors() {
        let meta = dir.metadata().map_err(|error| Fault::io(format!("cannot look at `{}`", dir.display()), error))?;
        let shift = match () {
            () if meta.uid() == owner.uid => 6,
            () if meta.gid() == owner.gid => 3,
            () => 0,
        };
        if owner.uid != 0 && (meta.mode() >> shift) & 1 == 0 {
            return Err(Fault::new(
                Code::PgInit,
                format!("user {} may not enter `{}`, which leads to the data dir", owner.uid, dir.display()),
            )
            .hint("give the right to enter (`chmod o+x`), or name a data dir elsewhere"));
        }
    }
    Ok(())
}

fn initdb(installation: &Installation, dir: &Path, owner: Option<Owner>) -> Result<(), Fault> {
    let failed = |cause: String| {
        Fault::new(Code::PgInit, format!("`initdb` cannot make a data dir in `{}`", dir.display()))
            .hint("the cause below is what it said; when it is mended, the next attempt begins afresh")
            .caused_by(cause)
    };
    let mut command = Command::new(installation.program("initdb"));
    command.arg("-D").arg(dir).args(["-U", SUPERUSER, "-E", "UTF8", "--data-checksums", "--no-instructions"]);
    // A thousand files are synced by one call of ours, before they get their name.
    command.arg("--no-sync");
    // Who may enter is written by us before the first start.
    command.args(["--auth-local=reject", "--auth-host=reject"]);
    // Text sorts alike on every machine, whatever its libraries: an index that two nodes sort differently is broken.
    match installation.version.major {
        16 => command.arg("--no-locale"),
        _ => command.args(["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]),
    };
    command.current_dir("/").env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin").env("TZ", "UTC");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if let Some(owner) = owner {
        command.uid(owner.uid).gid(owner.gid);
    }
    die_with_us(&mut command);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| failed(error.to_string()))? {
            Some(status) => break status,
            None if begun.elapsed() > INITDB_LIMIT => {
                let _ = child.kill().and_then(|()| child.wait());
                return Err(failed(format!("it took longer than {INITDB_LIMIT:?}")));
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    if let Some(errors) = child.stderr.take() {
        let _ = errors.take(4096).read_to_string(&mut said);
    }
    Err(failed(format!("{status}: {}", said.trim().replace('\n', "; "))))
}

fn write_mark(dir: &Path, mark: &DataMark, owner: Option<Owner>) -> Result<(), Fault> {
    let text = serde_json::to_vec(mark).map_err(|error| Fault::io("cannot write the mark", error.into()))?;
    let mut file = RealDisk.create_file(&dir.join(MARK), Access { mode: 0o600, owner })?;
    file.write_all(&text)?;
    file.sync()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_empty_foreign_and_ours_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        assert_eq!(observe_data(&dir), DataSeen::Absent);
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(observe_data(&dir), DataSeen::Empty);
        let put = |name: &str, text: &str| {
            use std::io::Write;
            std::fs::File::create(dir.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
        };
        put("PG_VERSION", "18\n");
        assert!(matches!(observe_data(&dir), DataSeen::Foreign(what) if what.contains("not made here")));
        put(MARK, "{");
        assert!(matches!(observe_data(&dir), DataSeen::Unknown(_)), "an unreadable mark is not an absent one");
        put(MARK, r#"{"group":"g","node":"n1"}"#);
        let mark = DataMark { group: "g".into(), node: "n1".into() };
        assert_eq!(observe_data(&dir), DataSeen::Ours { mark, major: 18 });
        assert!(matches!(observe_data(&dir.join("PG_VERSION")), DataSeen::Foreign(_)));
    }

    #[test]
    fn replaced_data_keeps_its_bytes_under_another_name_and_foreign_data_stays() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let mark = DataMark { group: "g".into(), node: "n1".into() };
        assert_eq!(replace_data(&dir, &mark, "1").unwrap(), None);
        for _ in 0..2 {
            std::fs::create_dir(&dir).unwrap();
            for (name, text) in [("PG_VERSION", "18\n"), (MARK, r#"{"group":"g","node":"n1"}"#)] {
                use std::io::Write;
                std::fs::File::create(dir.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
            }
            let other = DataMark { node: "n2".into(), ..mark.clone() };
            assert_eq!(replace_data(&dir, &other, "1").unwrap_err().code(), Code::PgForeignData);
            let new = replace_data(&dir, &mark, "1").unwrap().unwrap();
            assert!(new.join("PG_VERSION").exists() && !dir.exists());
        }
        assert!(root.path().join("data.replaced-1-1").exists());
    }
}
