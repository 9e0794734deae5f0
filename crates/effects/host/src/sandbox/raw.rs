//! System calls that no safe wrapper has, each in a function that cannot be misused.
//!
//! **Rule:** nothing is decided here, and every `unsafe` says why it holds.

use std::convert::Infallible;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::sock_filter;

/// Makes a process as `fork` does, in new namespaces. `None`: this is the new process.
///
/// Refused when this process has several threads: the new one would have the locks of those that it does not have.
pub(crate) fn clone_process(namespaces: u64) -> io::Result<Option<u32>> {
    is_alone()?;
    clone_careless(namespaces)
}

/// That this process has one thread.
pub(super) fn is_alone() -> io::Result<()> {
    match threads()? {
        1 => Ok(()),
        _ => Err(io::Error::other("a box is made by a process with one thread")),
    }
}

/// The same without the question; what the new process does then must neither allocate nor lock.
pub(super) fn clone_careless(namespaces: u64) -> io::Result<Option<u32>> {
    let flags = namespaces | libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM and with no stack given this is fork: the new process has a copy of everything.
    #[expect(unsafe_code, reason = "the standard library cannot make a process in new namespaces")]
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(u32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// The same careless one, begun in a control group of version 2, which is an open directory.
pub(super) fn clone_into(namespaces: u64, group: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    // The kernel's `clone_args`: flags first, the signal of its end fifth, the group last.
    let mut args = [0_u64; 11];
    args[0] = namespaces | INTO_CGROUP;
    args[4] = libc::SIGCHLD as u64;
    args[10] = u64::try_from(group.as_raw_fd()).map_err(io::Error::other)?;
    // SAFETY: as above, this is fork; the kernel reads as many bytes as are said, which are there.
    #[expect(unsafe_code, reason = "the standard library cannot make a process in a control group")]
    let pid = unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(u32::try_from(pid).map_err(io::Error::other)?)),
    }
}

/// Room for the process that borrows; what is not touched takes no memory.
const BORROWED_STACK: usize = 1 << 20;

/// Makes a process that uses this one's memory until it executes a program or ends; this one stands still until then. Nothing is
/// copied, which is most of what a process costs. To be called by a process with one thread that holds all signals.
///
/// What the new process changes in memory stays changed, what it opens and closes does not; it may allocate, as if it were called.
pub(super) fn borrow_process<F: FnOnce() -> Infallible>(work: F) -> io::Result<u32> {
    extern "C" fn begin<F: FnOnce() -> Infallible>(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it points to the `Option` below, whose owner stands still until this process is done with it.
        #[expect(unsafe_code, reason = "a new process gets one pointer")]
        let work = unsafe { &mut *work.cast::<Option<F>>() };
        match work.take().map(|work| work()) {
            Some(never) => match never {},
            None => 0,
        }
    }
    let mut work = Some(work);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is new, as long as is said, and unmapped only when the process that used it has another memory or has
    // ended, which is when `clone` returns (CLONE_VFORK). That process runs no handler of ours: all signals are held until it has
    // given each its usual meaning. With one thread, nobody else is in the allocator or holds a lock meanwhile.
    #[expect(unsafe_code, reason = "the standard library copies a process, or executes at once")]
    let made = unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let stack = libc::mmap(std::ptr::null_mut(), BORROWED_STACK, access, kind, -1, 0);
        if stack == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pid = libc::clone(begin::<F>, stack.byte_add(BORROWED_STACK), flags, (&raw mut work).cast());
        let made = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) };
        libc::munmap(stack, BORROWED_STACK);
        made
    };
    u32::try_from(made?).map_err(io::Error::other)
}

fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Ends this process at once: nothing is flushed, nothing is dropped, which is right for a copy of another process.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: it has no condition, and never returns.
    #[expect(unsafe_code, reason = "a copied process must not run what its original will run")]
    unsafe {
        libc::_exit(code)
    }
}

/// Adds attributes to a mount, and to those below it.
pub(super) fn add_mount_attributes(mount: BorrowedFd<'_>, attributes: u64, below: bool) -> io::Result<()> {
    let attr = libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let flags = libc::AT_EMPTY_PATH | if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is empty and lasts, and the attributes are a whole structure of the size that is said.
    #[expect(unsafe_code, reason = "no safe wrapper for mount_setattr")]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives this thread mounts of its own, a copy of those that it sees.
pub(super) fn own_mounts() -> io::Result<()> {
    // SAFETY: only the mounts are parted; descriptors, which others could rely on, stay shared.
    #[expect(unsafe_code, reason = "the wrapper cannot know that descriptors stay shared")]
    let parted = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) };
    Ok(parted?)
}

/// Which Landlock this kernel has; 0: none.
pub(super) fn landlock_version() -> i32 {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel reads nothing and only answers a number.
    #[expect(unsafe_code, reason = "no safe wrapper asks only for the version")]
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, VERSION) };
    i32::try_from(version).unwrap_or(0).max(0)
}

/// Installs a filter.
pub(super) fn install_filter(program: &[sock_filter]) -> io::Result<()> {
    seccomp(program, 0).map(drop)
}

/// Installs a filter whose refusals are asked about through the descriptor that is returned.
pub(super) fn install_asking_filter(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let fd = seccomp(program, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    // SAFETY: the kernel has just made it, and nobody else knows of it.
    #[expect(unsafe_code, reason = "a new descriptor from a system call")]
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn seccomp(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<i32> {
    let len = libc::c_ushort::try_from(program.len()).map_err(io::Error::other)?;
    // The kernel only reads it.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the filter is as long as is said, and outlives the call, in which the kernel copies it.
    #[expect(unsafe_code, reason = "no safe wrapper for filters")]
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    let answer = i32::try_from(answer).map_err(io::Error::other)?;
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Takes every capability out of the bounding set but those in `keep`.
pub(super) fn drop_bounding_set(keep: u64) -> io::Result<()> {
    for capability in 0..64_u64 {
        if keep & (1 << capability) != 0 {
            continue;
        }
        // SAFETY: prctl with these arguments reads and writes no memory.
        #[expect(unsafe_code, reason = "the wrapper knows only the capabilities of its own time")]
        let answer = unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        if answer != 0 {
            let error = io::Error::last_os_error();
            // The kernel has no more capabilities than that.
            return if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) };
        }
    }
    Ok(())
}

/// Lets every signal through and gives each its usual meaning, as a program expects it.
pub(crate) fn usual_signals() {
    for signal in 1..=31 {
        // SAFETY: the default action has no code of ours; SIGKILL and SIGSTOP are refused, which is ignored.
        #[expect(unsafe_code, reason = "no safe wrapper for signal actions")]
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    mask(libc::SIG_SETMASK, false);
}

/// Keeps all signals for [`Signals`].
pub(super) fn hold_all_signals() {
    mask(libc::SIG_SETMASK, true);
}

fn mask(how: libc::c_int, full: bool) {
    // SAFETY: the set is initialised by either call before it is used, and outlives the call.
    #[expect(unsafe_code, reason = "no safe wrapper for the signal mask")]
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        if full {
            libc::sigfillset(&raw mut set);
        } else {
            libc::sigemptyset(&raw mut set);
        }
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// The signals that are held, as something that can be read.
pub(super) struct Signals(std::fs::File);

/// One signal.
pub(super) struct Caught {
    pub(super) signal: i32,
    /// A process sent it, and not the kernel or the terminal.
    pub(super) sent: bool,
    /// Who sent it; 0: a process that cannot be seen from here.
    pub(super) sender: u32,
}

impl Signals {
    pub(super) fn new() -> io::Result<Signals> {
        // SAFETY: the set is initialised before use and outlives the call; the descriptor is new and ours.
        #[expect(unsafe_code, reason = "no safe wrapper for signalfd")]
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut set);
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Signals(fd.into()))
    }

    pub(super) fn fd(&self) -> &std::fs::File {
        &self.0
    }

    /// The next one, if there is one.
    pub(super) fn next(&self) -> io::Result<Option<Caught>> {
        use io::Read;
        let mut bytes = [0; size_of::<libc::signalfd_siginfo>()];
        match (&self.0).read(&mut bytes) {
            Ok(read) if read == bytes.len() => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let number = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_ne_bytes);
        let (signal, code, sender) = (number(0), number(8), number(12));
        Ok(Some(Caught {
            signal: signal.unwrap_or_default().cast_signed(),
            sent: code.unwrap_or_default().cast_signed() <= 0,
            sender: sender.unwrap_or_default(),
        }))
    }
}

/// Has every descriptor from `first` on closed when a program is executed.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    // SAFETY: nothing is closed now, only marked, so no owner of a descriptor is deceived.
    #[expect(unsafe_code, reason = "no safe wrapper for close_range")]
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor but the first three and those in `keep`; for a copied process, which shares them with the
/// original: locks, pipes and sockets live as long as the last copy.
pub(super) fn close_all_but(keep: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    keep.sort_unstable();
    let mut first = 3;
    for last in keep.into_iter().chain([u32::MAX]) {
        if last > first {
            let to = if last == u32::MAX { last } else { last - 1 };
            // SAFETY: this process is a copy that never returns to where the others are known, so nobody uses them.
            #[expect(unsafe_code, reason = "no safe wrapper for close_range")]
            let answer = unsafe { libc::syscall(libc::SYS_close_range, first, to, 0) };
            if answer != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = first.max(last.saturating_add(1));
    }
    Ok(())
}

/// Gives memory that is no longer used back to the machine: what made a box is large beside what keeps one.
pub(crate) fn give_back_memory() {
    // SAFETY: it has no condition; the allocator looks only at what is free.
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no safe wrapper for the allocator's own call")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Forgets pages of a file that are as they are in the file: whoever needs them gets them from there again.
pub(crate) fn forget_pages(pages: &std::ops::Range<usize>) {
    // SAFETY: the caller found that the range is a private mapping of a file, not writable, and without a page of its own; so
    // every byte of it is the same before and after. A refusal changes nothing.
    #[expect(unsafe_code, reason = "no safe wrapper: an address cannot be checked")]
    unsafe {
        libc::madvise(std::ptr::with_exposed_provenance_mut(pages.start), pages.len(), libc::MADV_DONTNEED);
    }
}

/// Has all threads of this process share one heap. Each would else begin one of its own, and keep it for good.
pub(crate) fn share_heap() {
    // SAFETY: it only sets a number of the allocator, before there is a second thread.
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "no safe wrapper for the allocator's own call")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Becomes another program; returns only why it could not.
pub(crate) fn execute(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let pointers = |words: &[CString]| {
        words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect::<Vec<*const libc::c_char>>()
    };
    let (args, env) = (pointers(args), pointers(env));
    // SAFETY: both lists end with a null pointer, and all they point to outlives the call.
    #[expect(unsafe_code, reason = "the standard library forks where this process has to be the program")]
    unsafe {
        libc::execve(program.as_ptr(), args.as_ptr(), env.as_ptr());
    }
    io::Error::last_os_error()
}
