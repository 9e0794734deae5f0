//! What a program needs beside itself: the loader that it names, and the system's libraries.
//!
//! **Rule:** the file is foreign bytes: no offset is used before it was compared with what is there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};

/// Where libraries lie; only directories of libraries, none of programs.
const LIBRARIES: [&str; 5] = ["/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/local/lib"];
/// A path is never longer.
const PATH_MAX: u64 = 4096;
/// More parts than any real program has.
const HEADERS_MAX: u16 = 512;

/// What it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needs {
    /// The program's own file.
    pub(super) program: PathBuf,
    /// The loader of its libraries; none: it has none to load.
    pub(super) loader: Option<PathBuf>,
}

impl Needs {
    /// Reads the program's headers.
    pub(super) fn of(program: &Path) -> Result<Needs, Fault> {
        let shown = program.display();
        let cannot = |error| {
            Fault::new(Code::NotExecuted, format!("cannot execute `{shown}`"))
                .hint("see that it is there, is executable, and is made for this machine")
                .caused_by(error)
        };
        let program = program.canonicalize().map_err(cannot)?;
        let file = File::open(&program).map_err(cannot)?;
        let mut start = Vec::new();
        (&file).take(64).read_to_end(&mut start).map_err(cannot)?;
        if start.starts_with(b"#!") {
            return Err(Fault::new(Code::BoxProgram, format!("cannot box `{shown}`: it is a script"))
                .hint(format!("name its interpreter, and let it read the script: --read {shown} -- /bin/sh {shown}")));
        }
        match loader(&file, &start) {
            Ok(loader) => Ok(Needs { program, loader }),
            Err(why) => Err(Fault::new(Code::BoxProgram, format!("cannot box `{shown}`: {why}"))
                .hint("a box takes programs of 64-bit ELF, made for this machine")),
        }
    }

    /// The directories of libraries that are there, if it needs any.
    pub(super) fn libraries(&self) -> Vec<PathBuf> {
        let there = |dir: &&&str| Path::new(dir).is_dir();
        if self.loader.is_none() {
            return Vec::new();
        }
        LIBRARIES.iter().filter(there).map(PathBuf::from).collect()
    }
}

/// The loader that an ELF file names.
fn loader(file: &File, start: &[u8]) -> Result<Option<PathBuf>, &'static str> {
    const INTERPRETER: u32 = 3;
    if !start.starts_with(b"\x7fELF") || start.len() < 64 {
        return Err("it is not an ELF program");
    }
    // 64 bits, little-endian: what this is built for.
    if start.get(4..6) != Some(&[2, 1]) {
        return Err("it is an ELF program of another kind of machine");
    }
    let (at, size, count) = (long(start, 32), short(start, 54), short(start, 56));
    let (Some(at), Some(size), Some(count)) = (at, size, count) else { return Err("its header is cut off") };
    if size < 56 || count > HEADERS_MAX {
        return Err("its header is damaged");
    }
    for n in 0..u64::from(count) {
        let mut header = [0; 56];
        let place = at.checked_add(n * u64::from(size)).ok_or("its header is damaged")?;
        file.read_exact_at(&mut header, place).map_err(|_| "its header is cut off")?;
        if word(&header, 0) != Some(INTERPRETER) {
            continue;
        }
        let (Some(from), Some(length)) = (long(&header, 8), long(&header, 32)) else { continue };
        if length == 0 || length > PATH_MAX {
            return Err("its header is damaged");
        }
        let mut path = vec![0; usize::try_from(length).unwrap_or_default()];
        file.read_exact_at(&mut path, from).map_err(|_| "its header is cut off")?;
        let path = path.split(|byte| *byte == 0).next().unwrap_or_default();
        return Ok(Some(PathBuf::from(OsStr::from_bytes(path))));
    }
    Ok(None)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_program_names_its_loader_and_a_script_is_refused() {
        let shell = Needs::of(Path::new("/bin/sh")).unwrap();
        assert!(shell.loader.as_ref().is_some_and(|loader| loader.exists()), "{shell:?}");
        assert!(!shell.libraries().is_empty());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("script");
        File::create(&path).unwrap().write_all(b"#!/bin/sh\n").unwrap();
        assert_eq!(Needs::of(&path).unwrap_err().code(), Code::BoxProgram);
        assert_eq!(Needs::of(&dir.path().join("none")).unwrap_err().code(), Code::NotExecuted);
    }

    #[test]
    fn damaged_headers_never_panic() {
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read("/bin/sh").unwrap();
        let path = dir.path().join("program");
        for at in 0..64 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole[..4096].to_vec();
                bytes[at] = value;
                File::create(&path).unwrap().write_all(&bytes).unwrap();
                let _ = Needs::of(&path);
                File::create(&path).unwrap().write_all(&bytes[..at]).unwrap();
                let _ = Needs::of(&path);
            }
        }
    }
}
