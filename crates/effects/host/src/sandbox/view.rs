//! Which files a boxed program sees, and what it may do with each.
//!
//! **Invariant:** every path is the same inside and outside, and is one without links; the links on the way are made anew.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_plan::boxes::{BoxSpec, Escape};
use serde::{Deserialize, Serialize};

use super::needs::Needs;

/// The five files of `/etc` that programs look into: names, hosts, libraries, the time zone.
const ETC: [&str; 5] = ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ld.so.cache", "/etc/localtime"];
/// The devices without which few programs run.
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// More links on the way to one file are a circle.
const LINKS_MAX: usize = 40;

/// What may be done with a file, or with all below a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Use {
    Execute,
    Read,
    /// Mapped as code, but not executed by itself.
    Library,
    Write,
    WriteAndExecute,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seen {
    pub(super) path: PathBuf,
    pub(super) is_dir: bool,
    pub(super) may: Use,
}

/// All that is seen, outer directories before what lies in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    pub(super) seen: Vec<Seen>,
    /// Links: where each is, and what it says.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
}

impl View {
    pub(super) fn new(spec: &BoxSpec, needs: &Needs) -> Result<View, Fault> {
        let (mut view, mut dirs) = (View::default(), HashSet::new());
        view.add(&mut dirs, &needs.program, Use::Execute)?;
        if let Some(loader) = &needs.loader {
            view.add(&mut dirs, loader, Use::Execute)?;
        }
        for dir in needs.libraries() {
            view.add(&mut dirs, &dir, Use::Library)?;
        }
        for path in ETC.iter().chain(&DEVICES).map(Path::new).filter(|path| path.exists()) {
            view.add(&mut dirs, path, if path.starts_with("/dev") { Use::Device } else { Use::Read })?;
        }
        let written = if spec.has(Escape::ExecutableData) { Use::WriteAndExecute } else { Use::Write };
        for (paths, may) in [(&spec.reads, Use::Read), (&spec.execs, Use::Execute), (&spec.writes, written)] {
            for path in paths {
                view.add(&mut dirs, Path::new(path), may)?;
            }
        }
        view.seen.sort_by_key(|seen| seen.path.components().count());
        Ok(view)
    }

    /// `dirs`: directories that were found to be no links.
    fn add(&mut self, dirs: &mut HashSet<PathBuf>, path: &Path, may: Use) -> Result<(), Fault> {
        let fail = |error| {
            Fault::new(Code::BoxPath, format!("cannot put `{}` into the box", path.display()))
                .hint("give it as an absolute path to something that is there")
                .caused_by(error)
        };
        if !path.is_absolute() {
            return Err(fail(std::io::Error::other("it is not absolute")));
        }
        let (path, is_dir) = self.follow(dirs, path).map_err(fail)?;
        if path == Path::new("/") {
            return Err(fail(std::io::Error::other(
                "all of the machine is no box; the name of that hole is `all-files`",
            )));
        }
        // What was added first and is the same file keeps the right that was meant for it.
        if !self.seen.iter().any(|seen| seen.path == path && seen.may == may) {
            self.seen.push(Seen { path, is_dir, may });
        }
        Ok(())
    }

    /// Goes a path, notes the links on it, and gives where it leads, and whether that is a directory.
    fn follow(&mut self, dirs: &mut HashSet<PathBuf>, path: &Path) -> std::io::Result<(PathBuf, bool)> {
        let mut rest: Vec<PathBuf> = parts(path);
        let mut here = PathBuf::from("/");
        let mut is_dir = true;
        let mut links = 0;
        while !rest.is_empty() {
            let part = rest.remove(0);
            if part == Path::new("..") {
                here.pop();
                is_dir = true;
                continue;
            }
            let next = here.join(&part);
            // Most paths have their beginning in common.
            if dirs.contains(&next) {
                (here, is_dir) = (next, true);
                continue;
            }
            let kind = next.symlink_metadata()?.file_type();
            if !kind.is_symlink() {
                if kind.is_dir() {
                    dirs.insert(next.clone());
                }
                (here, is_dir) = (next, kind.is_dir());
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(std::io::Error::other("too many links"));
            }
            let says = std::fs::read_link(&next)?;
            if says.is_absolute() {
                (here, is_dir) = (PathBuf::from("/"), true);
            }
            let mut more = parts(&says);
            more.append(&mut rest);
            rest = more;
            if !self.links.iter().any(|(at, _)| *at == next) {
                self.links.push((next, says));
            }
        }
        Ok((here, is_dir))
    }
}

fn parts(path: &Path) -> Vec<PathBuf> {
    let useful = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(useful).map(|part| PathBuf::from(part.as_os_str())).collect()
}

#[cfg(test)]
mod tests {
    use quorate_plan::boxes::Level;

    use super::*;

    #[test]
    fn links_are_followed_and_noted_and_circles_end() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("one")).unwrap();
        std::os::unix::fs::symlink(dir.join("one"), dir.join("two")).unwrap();
        std::os::unix::fs::symlink("circle", dir.join("circle")).unwrap();
        let needs = Needs { program: "/bin/sh".into(), loader: None };
        let with = |path: PathBuf| {
            let reads = vec![path.display().to_string()];
            View::new(&BoxSpec { reads, ..BoxSpec::new(Level::Strict) }, &needs)
        };
        let view = with(dir.join("two")).unwrap();
        assert!(view.seen.iter().any(|seen| seen.path == dir.join("real") && seen.is_dir && seen.may == Use::Read));
        for link in ["one", "two"] {
            assert!(view.links.iter().any(|(at, _)| *at == dir.join(link)), "{link}: {view:?}");
        }
        for bad in [dir.join("circle"), dir.join("none"), PathBuf::from("/"), PathBuf::from("relative")] {
            assert_eq!(with(bad).unwrap_err().code(), Code::BoxPath);
        }
    }
}
