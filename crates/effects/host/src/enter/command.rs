//! Finds the command as the process would, and becomes it.
//!
//! **Rule:** everything is looked up before rules and filters hold, in which looking up may no longer be possible.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};

use crate::sandbox::{Held, execute as become_program};

/// Where programs are looked for if the process says nothing about it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command whose program was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    program: PathBuf,
    words: Vec<String>,
}

/// The commands whose program is there and, where rules are known, may be executed; in the order of preference.
pub(super) fn candidates(
    commands: &[Vec<String>],
    env: &[(OsString, OsString)],
    held: Option<&Held>,
) -> Vec<Candidate> {
    let path = env.iter().rev().find(|(name, _)| name == "PATH").map_or(OsStr::new(PATH), |(_, path)| path);
    let mut found = Vec::new();
    for words in commands {
        let Some(name) = words.first() else { continue };
        let places: Vec<PathBuf> = match name.contains('/') {
            true => vec![PathBuf::from(name)],
            false => std::env::split_paths(path).map(|dir| dir.join(name)).collect(),
        };
        let may = |program: &PathBuf| is_program(program) && held.is_none_or(|held| is_allowed(held, program));
        found.extend(places.into_iter().filter(may).map(|program| Candidate { program, words: words.clone() }));
    }
    found
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Rules are about where a path leads.
fn is_allowed(held: &Held, program: &Path) -> bool {
    program.canonicalize().is_ok_and(|program| held.may_execute(&program))
}

/// Becomes the first that can be executed; else says why none could.
pub(super) fn execute(candidates: &[Candidate], env: &[(OsString, OsString)], wanted: &str, pid: u32) -> Fault {
    let mut last: Option<(String, io::Error)> = None;
    let pair = |(name, value): &(OsString, OsString)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    let env: Vec<CString> = env.iter().filter_map(|one| pair(one).ok()).collect();
    for Candidate { program, words } in candidates {
        let args: Result<Vec<CString>, _> = words.iter().map(|word| CString::new(word.as_bytes())).collect();
        let error = match (CString::new(program.as_os_str().as_bytes()), args) {
            (Ok(path), Ok(args)) => become_program(&path, &args, &env),
            (Err(error), _) | (_, Err(error)) => error.into(),
        };
        last = Some((program.display().to_string(), error));
    }
    let (what, error) = last.unwrap_or_else(|| (wanted.to_owned(), io::Error::from_raw_os_error(libc::ENOENT)));
    Fault::new(Code::CommandMissing, format!("cannot run `{what}` where process {pid} is"))
        .hint("only what is in its own root is there; --tools lends it the programs of this machine")
        .caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(commands: &[&[&str]], path: Option<&str>) -> Vec<String> {
        let commands: Vec<Vec<String>> =
            commands.iter().map(|words| words.iter().map(|word| (*word).to_owned()).collect()).collect();
        let env: Vec<(OsString, OsString)> = path.map(|path| ("PATH".into(), path.into())).into_iter().collect();
        let found = candidates(&commands, &env, None);
        found.into_iter().map(|candidate| candidate.program.display().to_string()).collect()
    }

    #[test]
    fn commands_are_found_by_the_path_of_the_process() {
        assert_eq!(found(&[&["sh", "-c", "x"]], Some("/nonexistent:/bin")), ["/bin/sh"]);
        assert!(found(&[&["sh"]], None).contains(&"/usr/bin/sh".to_owned()));
        assert_eq!(found(&[&["sh"]], Some("/nonexistent")), [""; 0]);
        assert_eq!(found(&[&["/no/such"], &["/bin/sh"], &[]], None), ["/bin/sh"]);
        // A directory and a file that nobody may execute are no programs.
        assert_eq!(found(&[&["/etc"], &["/etc/passwd"]], None), [""; 0]);
    }
}
