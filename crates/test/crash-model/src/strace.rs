//! Reads what a real program did to its files from a log of strace, for replay into crash states.
//!
//! For changes that a library makes where no [`RecordingDisk`](crate::RecordingDisk) can stand in between. The log is
//! that of `strace -f -y -xx -s BYTES -e trace=CALLS`, with [`CALLS`] and more bytes than any one write has.
//!
//! **Rule:** a call below the root that is not understood is a panic, not a gap. Whoever reads a log also compares
//! [`live_after`](crate::live_after) with what the run really left.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use quorate_host::durable::Access;

use crate::Op;

/// Every call that can change a file or sync it, for `-e trace=`. `?`: not every machine has each of them.
pub const CALLS: &str = "?mkdir,?mkdirat,?open,?openat,?openat2,?creat,?write,?pwrite64,?writev,?pwritev,?pwritev2,?lseek,\
                         ?ftruncate,?truncate,?fallocate,?copy_file_range,?sendfile,?splice,?fsync,?fdatasync,\
                         ?sync_file_range,?sync,?syncfs,?rename,?renameat,?renameat2,?link,?linkat,?symlink,?symlinkat,\
                         ?unlink,?unlinkat,?rmdir,?chmod,?fchmod,?fchmodat,?chown,?fchown,?fchownat,?dup,?dup2,?dup3";

/// The changes below `root`, in the order in which the calls returned. Modes are those of a `umask` of 022.
///
/// # Panics
/// On a log that does not look like strace's, and on calls below `root` that the model does not know.
pub fn read_strace(log: &str, root: &Path) -> Vec<Op> {
    let mut reader = Reader { root, ops: Vec::new(), open: HashMap::new() };
    let mut begun: HashMap<&str, String> = HashMap::new();
    for line in log.lines() {
        // `4711 fsync(9</tmp/x>) = 0`, or in two halves while another thread's call comes in between.
        let Some((thread, text)) = line.split_once(' ').map(|(thread, text)| (thread, text.trim_start())) else {
            continue;
        };
        if let Some(half) = text.strip_suffix(" <unfinished ...>") {
            begun.insert(thread, half.to_owned());
        } else if let Some((_, rest)) = text.strip_prefix("<... ").and_then(|text| text.split_once(" resumed>")) {
            let whole = begun.remove(thread).expect("a call that goes on was begun") + rest;
            reader.line(&whole);
        } else {
            reader.line(text);
        }
    }
    reader.ops
}

/// An open file or directory below the root.
struct Open {
    path: PathBuf,
    is_dir: bool,
    position: u64,
}

struct Reader<'r> {
    root: &'r Path,
    ops: Vec<Op>,
    open: HashMap<i64, Open>,
}

/// One argument: what stands in quotes, a number or words, and the path that strace says a descriptor has.
#[derive(Debug, Default)]
struct Arg {
    text: String,
    quoted: Option<Vec<u8>>,
    place: Option<PathBuf>,
}

impl Arg {
    fn number(&self) -> i64 {
        let digits = self.text.strip_prefix("0").filter(|rest| !rest.is_empty());
        let parsed = digits.map_or_else(|| self.text.parse(), |octal| i64::from_str_radix(octal, 8));
        parsed.unwrap_or_else(|_| panic!("`{}` is no number", self.text))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(OsString::from_vec(self.quoted.clone().expect("a path stands in quotes")))
    }
}

impl Reader<'_> {
    fn line(&mut self, text: &str) {
        // Signals and ends of threads are no calls.
        let Some((name, rest)) = text.split_once('(').filter(|(name, _)| name.bytes().all(|b| b.is_ascii_graphic()))
        else {
            return;
        };
        let Some((args, result)) = rest.rsplit_once(") = ") else { return };
        let result = result.split(['<', ' ']).next().and_then(|digits| digits.parse::<i64>().ok());
        let Some(result) = result.filter(|result| *result >= 0) else { return };
        self.call(name, &split(args), result);
    }

    fn call(&mut self, name: &str, args: &[Arg], result: i64) {
        match name {
            "open" => self.opened(args[0].path(), &args[1].text, args.get(2), result),
            "creat" => self.opened(args[0].path(), "O_WRONLY|O_CREAT|O_TRUNC", args.get(1), result),
            "openat" => self.opened(at(&args[0], &args[1]), &args[2].text, args.get(3), result),
            "mkdir" => self.made_dir(args[0].path(), &args[1]),
            "mkdirat" => self.made_dir(at(&args[0], &args[1]), &args[2]),
            "write" => self.wrote(args, None, result),
            "pwrite64" => self.wrote(args, Some(args[3].number() as u64), result),
            "lseek" => {
                if let Some(open) = self.open_at(&args[0]) {
                    open.position = result as u64;
                }
            }
            "fsync" | "fdatasync" => self.synced(&args[0]),
            "rename" => self.renamed(args[0].path(), args[1].path()),
            "renameat" | "renameat2" => self.renamed(at(&args[0], &args[1]), at(&args[2], &args[3])),
            "link" => self.linked(args[0].path(), args[1].path()),
            "linkat" => self.linked(at(&args[0], &args[1]), at(&args[2], &args[3])),
            "unlink" => self.removed(args[0].path(), false),
            "rmdir" => self.removed(args[0].path(), true),
            "unlinkat" => self.removed(at(&args[0], &args[1]), args[2].text.contains("AT_REMOVEDIR")),
            _ => {
                let touches = |arg: &Arg| {
                    arg.place.as_deref().is_some_and(|place| self.is_ours(place))
                        || arg.quoted.is_some() && self.is_ours(&arg.path())
                };
                assert!(!args.iter().any(touches), "`{name}` changes files, and the model does not know how");
            }
        }
    }

    fn is_ours(&self, path: &Path) -> bool {
        path.starts_with(self.root)
    }

    /// What a descriptor stands for, if it is below the root. Closing is not in the log: the number of a file that was
    /// read and closed may by now be that of a pipe, and only the path beside it tells.
    fn open_at(&mut self, descriptor: &Arg) -> Option<&mut Open> {
        let ours = descriptor.place.as_deref().is_some_and(|place| place.starts_with(self.root));
        self.open.get_mut(&descriptor.number()).filter(|_| ours)
    }

    fn opened(&mut self, path: PathBuf, flags: &str, mode: Option<&Arg>, descriptor: i64) {
        self.open.remove(&descriptor);
        if !self.is_ours(&path) {
            return;
        }
        let has = |flag: &str| flags.split('|').any(|one| one == flag);
        if has("O_CREAT") {
            assert!(has("O_EXCL"), "`{}` may have been there before it was opened", path.display());
            let mode = mode.expect("whoever makes a file gives a mode").number() as u32;
            self.ops.push(Op::CreateFile { path: path.clone(), access: Access::mode(mode & !0o022) });
        } else {
            assert!(!has("O_TRUNC"), "`{}` is emptied, and the model does not know how", path.display());
        }
        assert!(!has("O_APPEND") || has("O_CREAT"), "the model does not know where `{}` ends", path.display());
        let is_dir = self.ops.iter().rev().find_map(|op| match op {
            Op::CreateDir { path: there, .. } if *there == path => Some(true),
            Op::CreateFile { path: there, .. } if *there == path => Some(false),
            _ => None,
        });
        // What the run did not make is still there to be asked.
        let is_dir = is_dir.unwrap_or_else(|| path.is_dir());
        self.open.insert(descriptor, Open { path, is_dir, position: 0 });
    }

    fn made_dir(&mut self, path: PathBuf, mode: &Arg) {
        if self.is_ours(&path) {
            let access = Access::mode(mode.number() as u32 & !0o022);
            self.ops.push(Op::CreateDir { path, access });
        }
    }

    fn wrote(&mut self, args: &[Arg], offset: Option<u64>, length: i64) {
        let Some(open) = self.open_at(&args[0]) else { return };
        let bytes = args[1].quoted.as_deref().and_then(|bytes| bytes.get(..length as usize));
        let bytes = bytes.expect("strace showed every byte that was written").to_vec();
        let place = offset.unwrap_or(open.position);
        if offset.is_none() {
            open.position += length as u64;
        }
        let path = open.path.clone();
        self.ops.push(Op::Write { path, offset: place, bytes });
    }

    fn synced(&mut self, descriptor: &Arg) {
        let Some(open) = self.open_at(descriptor) else { return };
        let (path, is_dir) = (open.path.clone(), open.is_dir);
        self.ops.push(if is_dir { Op::SyncDir { path } } else { Op::SyncFile { path } });
    }

    fn renamed(&mut self, from: PathBuf, to: PathBuf) {
        match (self.is_ours(&from), self.is_ours(&to)) {
            (false, false) => {}
            (true, true) => self.ops.push(Op::Rename { from, to }),
            _ => panic!("`{}` crosses the border of the model to `{}`", from.display(), to.display()),
        }
    }

    fn linked(&mut self, from: PathBuf, to: PathBuf) {
        match (self.is_ours(&from), self.is_ours(&to)) {
            (false, false) => {}
            (true, true) => self.ops.push(Op::Link { from, to }),
            _ => panic!("`{}` crosses the border of the model to `{}`", from.display(), to.display()),
        }
    }

    fn removed(&mut self, path: PathBuf, is_dir: bool) {
        if self.is_ours(&path) {
            self.ops.push(if is_dir { Op::RemoveDir { path } } else { Op::RemoveFile { path } });
        }
    }
}

/// A name below a directory's descriptor.
fn at(dir: &Arg, name: &Arg) -> PathBuf {
    let name = name.path();
    dir.place.as_ref().map_or_else(|| name.clone(), |dir| dir.join(&name))
}

/// The arguments of a call. Strings are all hex escapes, so no comma or bracket hides in one.
fn split(args: &str) -> Vec<Arg> {
    let mut found = Vec::new();
    for text in args.split(", ") {
        let mut arg = Arg::default();
        if let Some(quoted) = text.strip_prefix('"') {
            let (inside, after) = quoted.split_once('"').expect("quotes are closed");
            assert!(!after.starts_with("..."), "strace cut a string: give it a larger `-s`");
            arg.quoted = Some(unescape(inside));
        } else if let Some((number, place)) = text.split_once('<') {
            arg.text = number.to_owned();
            let place = place.split('>').next().unwrap_or_default();
            arg.place = Some(PathBuf::from(OsString::from_vec(unescape(place))));
        } else {
            arg.text = text.to_owned();
        }
        found.push(arg);
    }
    found
}

fn unescape(text: &str) -> Vec<u8> {
    let hex = |pair: &str| u8::from_str_radix(pair, 16).expect("two digits follow `\\x`");
    text.split("\\x").skip(1).map(|pair| hex(pair.get(..2).expect("two digits follow `\\x`"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(text: &str) -> String {
        text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
    }

    /// `PATH(…)` and `"…"` of a readable log in strace's hex.
    fn log(lines: &[&str]) -> String {
        let escape = |line: &&str| {
            let parts = line.split('\'').enumerate();
            parts.map(|(at, part)| if at % 2 == 1 { escaped(part) } else { part.to_owned() }).collect::<String>() + "\n"
        };
        lines.iter().map(escape).collect()
    }

    #[test]
    fn calls_become_changes_in_the_order_in_which_they_ended() {
        let log = log(&[
            "1 openat(AT_FDCWD<'/w'>, \"'/r/a#1'\", O_RDWR|O_CREAT|O_EXCL|O_CLOEXEC, 0666) = 9<'/r/a#1'>",
            "1 write(9<'/r/a#1'>, \"'abcd'\", 4) = 3",
            "2 write(1<'/dev/null'>, \"'talk'\", 4 <unfinished ...>",
            "1 write(9<'/r/a#1'>, \"'d'\", 1 <unfinished ...>",
            "2 <... write resumed>) = 4",
            "1 <... write resumed>) = 1",
            "1 fsync(9<'/r/a#1'>) = 0",
            "1 linkat(AT_FDCWD<'/w'>, \"'/r/a#1'\", AT_FDCWD<'/w'>, \"'/r/a'\", 0) = 0",
            "1 mkdir(\"'/r/b'\", 0777) = -1 EEXIST (File exists)",
            "1 openat(AT_FDCWD<'/w'>, \"'/r'\", O_RDONLY|O_CLOEXEC) = 9<'/r'>",
            "3 --- SIGCHLD {si_signo=SIGCHLD} ---",
            "1 unlink(\"'/r/a#1'\") = 0",
            "2 write(9<'pipe:[77]'>, \"'wake'\", 4) = 4",
        ]);
        let path = |name: &str| PathBuf::from("/r").join(name);
        let write = |offset, bytes: &str| Op::Write { path: path("a#1"), offset, bytes: bytes.as_bytes().to_vec() };
        let wanted = [
            Op::CreateFile { path: path("a#1"), access: Access::mode(0o644) },
            write(0, "abc"),
            write(3, "d"),
            Op::SyncFile { path: path("a#1") },
            Op::Link { from: path("a#1"), to: path("a") },
            Op::RemoveFile { path: path("a#1") },
        ];
        assert_eq!(read_strace(&log, Path::new("/r")), wanted);
    }

    #[test]
    #[should_panic(expected = "`ftruncate` changes files")]
    fn a_change_that_is_not_understood_is_no_gap() {
        read_strace(&log(&["1 ftruncate(9<'/r/a'>, 0) = 0"]), Path::new("/r"));
    }
}
