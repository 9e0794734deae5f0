//! What an attacker would try, one attempt after the other, and what came of each.
//!
//! **Rule:** an attempt counts as allowed when the kernel would have gone on with it; nothing is destroyed to find out.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Error, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::raw::{call, call_five, exit_now, fork};

/// More processes than any box of a test may have.
const BOMB: usize = 300;
/// More memory than any box of a test may have.
const FEAST: usize = 192 << 20;

type Attempt = fn(&Surroundings) -> io::Result<()>;

/// What the test made for the attacker to go for.
struct Surroundings {
    data: PathBuf,
    foreign: PathBuf,
    /// The folder of a node's certificates; what the program itself needs of it lies elsewhere.
    pki: PathBuf,
    pid: i32,
    bind: u16,
    connect: u16,
    socket: String,
}

/// What no rule of the kernel tells from a program that maps its own libraries.
const BY_THE_LOADER: &str = "execute a file of the library directories, by the loader";

/// Every attempt, with the words that the table has for it.
const ATTEMPTS: &[(&str, Attempt)] = &[
    ("read `/etc/shadow`", |_| read(Path::new("/etc/shadow"))),
    ("read another tenant's data", |near| read(&near.foreign.join("data"))),
    ("read another tenant's key", |near| read(&near.foreign.join("key"))),
    ("read the issuing key of an authority", |near| read(&near.pki.join("peer-ca.key"))),
    ("read the agent's key", |near| read(&near.pki.join("agent.key"))),
    ("read an operator's key", |near| read(&near.pki.join("admin.key"))),
    ("list the folder of certificates", |near| std::fs::read_dir(&near.pki).map(drop)),
    ("list another tenant's directory", |near| std::fs::read_dir(&near.foreign).map(drop)),
    ("write into another tenant's directory", |near| make(&near.foreign.join("planted"))),
    ("write into `/etc`", |_| make(Path::new("/etc/quorate-probe"))),
    ("write into `/usr/lib`", |_| make(Path::new("/usr/lib/quorate-probe"))),
    ("execute what it has written", execute_written),
    ("execute what it has written, from memory", execute_from_memory),
    ("execute another program", |_| Command::new("/usr/bin/env").output().map(drop)),
    (BY_THE_LOADER, by_the_loader),
    ("make a device node", make_node),
    ("trace a process outside", |near| {
        call(libc::SYS_ptrace, [0x4206, near.pid.into(), 0, 0]).and_then(|_| detach(near.pid))
    }),
    ("read the memory of a process outside", |near| {
        read(&PathBuf::from(format!("/proc/{}/mem", near.pid))).or_else(ignore_io)
    }),
    ("read the environment of a process outside", |near| read(&PathBuf::from(format!("/proc/{}/environ", near.pid)))),
    ("signal a process outside", |near| call(libc::SYS_kill, [near.pid.into(), 0, 0, 0]).map(drop)),
    ("leave through `/proc/PID/root`", |near| read(&PathBuf::from(format!("/proc/{}/root/etc/passwd", near.pid)))),
    ("open the machine's memory (`/proc/kcore`)", |_| File::open("/proc/kcore").map(drop)),
    ("change the kernel's settings (`/proc/sys`)", |_| open_to_write(Path::new("/proc/sys/kernel/core_pattern"))),
    ("press the magic key (`/proc/sysrq-trigger`)", |_| open_to_write(Path::new("/proc/sysrq-trigger"))),
    ("mount", |_| mount()),
    ("change the root", |_| call(libc::SYS_chroot, [c"/".as_ptr() as libc::c_long, 0, 0, 0]).map(drop)),
    ("make a user namespace", |_| in_a_copy(|| call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0]).is_ok())),
    ("enter the namespaces of a process outside", enter),
    ("load a kernel module", |_| allowed_unless_refused(call(libc::SYS_init_module, [0, 0, 0, 0]))),
    ("load a BPF program", |_| allowed_unless_refused(call(libc::SYS_bpf, [5, 0, 0, 0]))),
    ("watch the machine's performance events", |_| {
        allowed_unless_refused(call(libc::SYS_perf_event_open, [0, -1, 0, -1]))
    }),
    ("use `io_uring`", |_| allowed_unless_refused(call(libc::SYS_io_uring_setup, [1, 0, 0, 0]))),
    ("use the kernel's keyrings", |_| call(libc::SYS_keyctl, [0, -3, 1, 0]).map(drop)),
    ("read the kernel's log", |_| call(libc::SYS_syslog, [10, 0, 0, 0]).map(drop)),
    ("reboot", |_| allowed_unless_refused(call(libc::SYS_reboot, [0, 0, 0, 0]))),
    ("become root", |_| in_a_copy(|| call(libc::SYS_setuid, [0; 4]).is_ok() && read(Path::new("/etc/shadow")).is_ok())),
    ("listen on a port that is not its own", |near| TcpListener::bind(("127.0.0.1", near.bind)).map(drop)),
    ("connect to a port that it may not reach", |near| TcpStream::connect(("127.0.0.1", near.connect)).map(drop)),
    ("connect to an abstract socket outside", abstract_socket),
    ("open a raw socket", |_| call(libc::SYS_socket, [libc::AF_PACKET.into(), libc::SOCK_RAW.into(), 0, 0]).map(drop)),
    ("start a fork bomb", |_| bomb()),
    ("eat memory", |_| feast()),
];

/// Tries all, or those whose words are given.
pub(crate) fn run(names: &[OsString]) -> ExitCode {
    let value = |name: &str| std::env::var(name).unwrap_or_default();
    let near = Surroundings {
        data: value("PROBE_DATA").into(),
        foreign: value("PROBE_FOREIGN").into(),
        pki: value("PROBE_PKI").into(),
        pid: value("PROBE_PID").parse().unwrap_or(0),
        bind: value("PROBE_BIND").parse().unwrap_or(0),
        connect: value("PROBE_CONNECT").parse().unwrap_or(0),
        socket: value("PROBE_SOCKET"),
    };
    let mut out = io::stdout();
    for (name, attempt) in ATTEMPTS.iter().filter(|(name, _)| names.is_empty() || names.iter().any(|n| n == name)) {
        let line = match attempt(&near) {
            Ok(()) => format!("{name}\tallowed\t\n"),
            Err(error) => format!("{name}\tdenied\t{error}\n"),
        };
        if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn read(path: &Path) -> io::Result<()> {
    File::open(path)?.read(&mut [0; 16]).map(drop)
}

/// The first page of a process is never there: who gets that far has been let in.
fn ignore_io(error: Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::EIO) { Ok(()) } else { Err(error) }
}

fn make(path: &Path) -> io::Result<()> {
    File::create(path)?;
    std::fs::remove_file(path)
}

fn open_to_write(path: &Path) -> io::Result<()> {
    File::options().write(true).open(path).map(drop)
}

fn execute_written(near: &Surroundings) -> io::Result<()> {
    let copy = near.data.join("written");
    // Another attacker's may be there, and not be ours to write to.
    let _ = std::fs::remove_file(&copy);
    std::fs::copy(std::env::current_exe()?, &copy)?;
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    let executed = Command::new(&copy).output().map(drop);
    std::fs::remove_file(&copy)?;
    executed
}

/// A file in memory belongs to no directory that a rule could be about.
fn execute_from_memory(_: &Surroundings) -> io::Result<()> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    let plain = call(libc::SYS_memfd_create, [c"written".as_ptr() as libc::c_long, 0, 0, 0])?;
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    #[expect(unsafe_code, reason = "a new descriptor from a system call")]
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(i32::try_from(plain).map_err(Error::other)?) });
    file.write_all(&std::fs::read(std::env::current_exe()?)?)?;
    // By its number first: `execveat` is the other way, and asks for the same.
    let by_name = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())).output().map(drop);
    by_name.or_else(|_| {
        in_a_copy(|| {
            let number = libc::c_long::from(file.as_raw_fd());
            // An attacker that tries nothing ends well.
            let words = [c"probe".as_ptr(), c"attack".as_ptr(), c"nothing".as_ptr(), std::ptr::null()];
            let words = words.as_ptr() as libc::c_long;
            let _ = call_five(libc::SYS_execveat, [number, c"".as_ptr() as libc::c_long, words, 0, 0x1000]);
            false
        })
    })
}

/// The C library can be run as a program, and lies where every program has its libraries from.
fn by_the_loader(_: &Surroundings) -> io::Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mapped = |part: &str| {
        let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains(part));
        path.map(PathBuf::from).ok_or_else(|| Error::other(format!("no {part}")))
    };
    let output = Command::new(mapped("/ld-")?).arg(mapped("/libc.so")?).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

fn make_node(near: &Surroundings) -> io::Result<()> {
    let path = near.data.join("node");
    let words = [path.to_str().unwrap_or_default(), "\0"].concat();
    let mode = (libc::S_IFBLK | 0o600).into();
    call(libc::SYS_mknodat, [libc::AT_FDCWD.into(), words.as_ptr() as libc::c_long, mode, 0xfe00])?;
    std::fs::remove_file(path)
}

fn detach(pid: i32) -> io::Result<()> {
    // It must be stopped to be let go; our own end lets it go too, and nothing was changed.
    let _ = call(libc::SYS_ptrace, [17, pid.into(), 0, 0]);
    Ok(())
}

fn mount() -> io::Result<()> {
    let (kind, place) = (c"tmpfs".as_ptr() as libc::c_long, c"/tmp".as_ptr() as libc::c_long);
    in_a_copy(|| {
        // In a mount namespace of its own where that can be had, so that nothing is hidden from others.
        let apart = call(libc::SYS_unshare, [libc::CLONE_NEWNS.into(), 0, 0, 0]);
        let mounted = match apart {
            Ok(_) => {
                let alone = (libc::MS_PRIVATE | libc::MS_REC).cast_signed();
                // The fifth argument is null, as for every change of how mounts spread.
                let _ = call(libc::SYS_mount, [0, c"/".as_ptr() as libc::c_long, 0, alone]);
                call(libc::SYS_mount, [kind, place, kind, 0])
            }
            Err(error) => Err(error),
        };
        mounted.is_ok()
    })
}

fn enter(near: &Surroundings) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let space = File::open(format!("/proc/{}/ns/uts", near.pid))?;
    call(libc::SYS_setns, [space.as_raw_fd().into(), 0, 0, 0]).map(drop)
}

/// The arguments are nonsense: a kernel that says so would have gone on with better ones.
fn allowed_unless_refused(answer: io::Result<libc::c_long>) -> io::Result<()> {
    let refusals = [libc::EPERM, libc::EACCES, libc::ENOSYS];
    match answer {
        Err(error) if error.raw_os_error().is_some_and(|errno| refusals.contains(&errno)) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Does something that cannot be undone, in a process that ends.
fn in_a_copy(work: impl FnOnce() -> bool) -> io::Result<()> {
    let Some(pid) = fork()? else { exit_now(i32::from(!work())) };
    match waitpid(Pid::from_raw(pid), WaitOptions::empty())? {
        Some((_, status)) if status.exit_status() == Some(0) => Ok(()),
        Some((_, status)) => Err(Error::other(format!("{status:?}"))),
        None => Err(Error::other("lost")),
    }
}

fn abstract_socket(near: &Surroundings) -> io::Result<()> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(near.socket.as_bytes())?).map(drop)
}

fn bomb() -> io::Result<()> {
    let mut children = Vec::new();
    let failed = loop {
        if children.len() >= BOMB {
            break None;
        }
        match fork() {
            Ok(Some(pid)) => children.push(pid),
            Ok(None) => loop {
                std::thread::park();
            },
            Err(error) => break Some(error),
        }
    };
    for pid in children.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
    failed.map_or(Ok(()), Err)
}

fn feast() -> io::Result<()> {
    in_a_copy(|| {
        if Vec::<u8>::new().try_reserve_exact(FEAST).is_err() {
            return false;
        }
        let mut meal = vec![0_u8; FEAST];
        meal.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        meal.iter().step_by(4096).all(|byte| *byte == 1)
    })
}
