//! The shim's own process: starts the program, keeps its output, stops it when asked, records how it ended.
//!
//! **Invariant:** which process the program is stands in the state dir before its first instruction, and the exit record
//! is written after the last of its processes is gone.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quorate_faults::{Code, Fault};
use quorate_plan::boxes::BoxPlan;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use super::capture::{Reader, Shared, pair};
use super::control::{Answer, Ask, Status, StopOrder, listen, serve};
use super::inner::INNER;
use super::spec::{Orders, Rung, RunningFile, Send, now_ms};
use super::stopping::Stopping;
use super::waiting::{End, end_all, end_session, hold_signals, next_signal, wait_for};
use crate::durable::RealDisk;
use crate::exit_record::{self, ExitRecord, Reason, Recorded};
use crate::locks::Lock;
use crate::process::{Identity, Seen, boot_id, stat};
use crate::sandbox::{
    Kept, Launch, clone_process, close_on_exec_from, execute as become_program, exit_now, give_back_memory, prepare,
    share_heap, usual_signals,
};
use crate::state::{ORDERS, StateDir, take};

/// The shim's threads do little; the usual 2 MiB of stack each would only be address space, but say so.
const STACK: usize = 256 << 10;
/// What every shell says when a program cannot be executed.
const NOT_EXECUTED: i32 = 126;
/// How often the record is tried again when the disk is full.
const RECORD_TRIES: u32 = 20;

/// What the shim waits for.
pub(super) enum Event {
    Ended(io::Result<End>),
    Signal(&'static str),
    Asked(Ask, Sender<Answer>),
}

/// What the shim tells whoever started it, once.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Greeting {
    Started,
    Fault { code: String, said: String, cause: Option<String> },
}

/// Runs the shim until its program has ended and the record is written.
pub fn keep(spec: &Path) -> Result<(), Fault> {
    share_heap();
    let apart = begin_session();
    let started = apart.and_then(|()| start(spec));
    let greeting = match &started {
        Ok(_) => Greeting::Started,
        Err(fault) => Greeting::Fault {
            code: fault.code().as_str().to_owned(),
            said: fault.to_string(),
            cause: std::error::Error::source(fault).map(ToString::to_string),
        },
    };
    greet(&greeting);
    drop(greeting);
    give_back_memory();
    started?.run()
}

/// Neither Ctrl-C nor a closed terminal of whoever started us is for us.
fn begin_session() -> Result<(), Fault> {
    match rustix::process::setsid() {
        Ok(_) => Ok(()),
        // It leads one already.
        Err(_) if rustix::process::getsid(None).is_ok_and(|session| session == rustix::process::getpid()) => Ok(()),
        Err(errno) => {
            Err(Fault::new(Code::ShimFailed, "the shim cannot begin a session").caused_by(io::Error::from(errno)))
        }
    }
}

/// Says the one line on stdout, and then lets go of it: whoever reads it may die without us noticing.
fn greet(greeting: &Greeting) {
    if let Ok(line) = serde_json::to_vec(greeting) {
        let _ = io::stdout().write_all(&line).and_then(|()| io::stdout().flush());
    }
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

struct Keeper {
    state: StateDir,
    orders: Orders,
    running: RunningFile,
    /// Our own child: the program, or the first process of its box.
    main: u32,
    kept: Option<Kept>,
    shared: Arc<Shared>,
    events: Receiver<Event>,
    log: JoinHandle<()>,
    /// Closed to tell the log's reader that nothing more will come.
    log_over: OwnedFd,
    stop: Option<Stopping>,
    /// The newest revision that we were told of.
    noted: Option<u64>,
    _lock: Lock,
}

fn start(spec: &Path) -> Result<Keeper, Fault> {
    let failed = |what: &str| Fault::new(Code::ShimFailed, format!("the shim cannot {what}"));
    let unread = || failed(&format!("read `{}`", spec.display()));
    // Nothing is made beside what cannot be its orders.
    if !spec.ends_with(ORDERS) || !spec.is_file() {
        return Err(unread().caused_by("it is not there"));
    }
    let state = StateDir::made(spec.parent().unwrap_or(Path::new("/")))?;
    let lock = lock(&state)?;
    let orders = Orders::read(spec).map_err(|why| unread().caused_by(why))?;
    exit_record::consume(&RealDisk, &state.record())?;
    let log_dir = &orders.spec.log_dir;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o750).create(log_dir);
    made.map_err(|error| Fault::io(format!("cannot make the log dir `{}`", log_dir.display()), error))?;
    hold_signals();
    // What the program leaves behind becomes our child, so that none of it is overlooked.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| failed("take in orphans").caused_by(io::Error::from(errno)))?;
    let listener = listen(state.path()).map_err(|error| failed("listen in the state dir").caused_by(error))?;
    let (ours, theirs) = pair().map_err(|error| failed("make a way for the output").caused_by(error))?;
    let (over, log_over) = io::pipe().map_err(|error| failed("make a way for the output").caused_by(error))?;
    let (running, kept) = match &orders.boxed {
        Some(plan) => execute_boxed(&state, &orders, plan, &theirs)?,
        None => match execute(&state, &orders, &theirs) {
            Ok(running) => (running, None),
            Err(error) => return Err(not_started(&state, &orders, error)),
        },
    };
    let main = kept.as_ref().map_or(running.child.pid, Kept::init);
    drop(theirs);
    let shared = Arc::new(Shared::default());
    let reader = Reader::new(ours, over.into(), Arc::clone(&shared), &orders.spec);
    let (sender, events) = channel();
    let fail = |error| failed("start a thread").caused_by(error);
    let log = thread("log", move || reader.run()).map_err(fail)?;
    let to = sender.clone();
    thread("wait", move || drop(to.send(Event::Ended(wait_for(main))))).map_err(fail)?;
    let to = sender.clone();
    thread("signals", move || while to.send(Event::Signal(next_signal())).is_ok() {}).map_err(fail)?;
    let token = orders.token.clone();
    thread("control", move || serve(&listener, &token, &sender)).map_err(fail)?;
    let log_over = log_over.into();
    Ok(Keeper {
        state,
        orders,
        running,
        main,
        kept,
        shared,
        events,
        log,
        log_over,
        stop: None,
        noted: None,
        _lock: lock,
    })
}

fn thread(name: &str, work: impl FnOnce() + std::marker::Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(work)
}

/// One shim per state dir, and none while its predecessor's program still runs.
fn lock(state: &StateDir) -> Result<Lock, Fault> {
    let busy = |who: String| {
        Fault::new(Code::AlreadyRunning, format!("the member of `{}` already runs: {who}", state.path().display()))
            .hint("it is adopted, not started twice; stop it first if it is to be started anew")
    };
    let lock = match take(&state.shim_lock())? {
        Ok(lock) => lock,
        Err(pid) => return Err(busy(pid.map_or("its shim".to_owned(), |pid| format!("its shim is process {pid}")))),
    };
    let fail = |error| Fault::io(format!("cannot read `{}`", state.running().display()), error);
    if let Some(Ok(running)) = RunningFile::read(&state.running()).map_err(fail)? {
        match running.child.look() {
            Seen::Running(handle) => return Err(busy(format!("process {} without a shim", handle.pid()))),
            Seen::Unknown(error) => return Err(fail(error)),
            // Its shim was killed, and could not end what it left.
            Seen::Gone if !running.taken && exit_record::read(&state.record()) == Recorded::Absent => {
                if !end_session(&running.shim) {
                    return Err(busy("something that an earlier one left does not end".to_owned()));
                }
            }
            Seen::Gone => {}
        }
    }
    Ok(lock)
}

/// Who the program will be, apart from its number.
fn about(orders: &Orders) -> io::Result<RunningFile> {
    let spec = &orders.spec;
    let program = spec.program.canonicalize()?;
    let meta = program.metadata()?;
    let nobody = Identity { pid: 0, started_ticks: 0, boot_id: boot_id()?, executable: program };
    Ok(RunningFile {
        shim: Identity::of(std::process::id())?,
        child: nobody,
        file: (meta.dev(), meta.ino()),
        token: orders.token.clone(),
        config_hash: spec.config_hash.clone(),
        started_at_ms: now_ms(),
        taken: false,
        held: None,
    })
}

/// Starts the program in a box. It stands before its first instruction when it is written down.
fn execute_boxed(
    state: &StateDir,
    orders: &Orders,
    plan: &BoxPlan,
    output: &OwnedFd,
) -> Result<(RunningFile, Option<Kept>), Fault> {
    let spec = &orders.spec;
    let start = || -> Result<(RunningFile, Option<Kept>), Fault> {
        let fail = |error| Fault::io("cannot write down what runs", error);
        let mut running = about(orders).map_err(fail)?;
        let name = std::iter::once(spec.program.clone().into_os_string());
        let launch = Launch {
            program: running.child.executable.clone(),
            args: name.chain(spec.args.iter().map(Into::into)).collect(),
            env: spec.environment().map_err(|error| Fault::io("cannot read a variable", error))?,
            dir: spec.dir.clone(),
            output: Some(output.as_fd().try_clone_to_owned().map_err(fail)?),
            apart: true,
            with_keeper: false,
        };
        let waiting = prepare(plan, launch)?;
        running.child.pid = waiting.program();
        running.child.started_ticks = stat(running.child.pid).map_err(fail)?.started_ticks;
        running.held = Some(Box::new(waiting.held().clone()));
        running.write(&state.running()).map_err(fail)?;
        Ok((running, Some(waiting.run(&spec.program)?)))
    };
    start().inspect_err(|fault| {
        let cause = std::error::Error::source(fault).map(ToString::to_string);
        record_not_started(state, orders, &cause.unwrap_or_else(|| fault.to_string()));
    })
}

/// Starts the program without a box. The new process writes down who it is before it becomes the program, so that there is no
/// moment in which it runs and nobody could find it.
fn execute(state: &StateDir, orders: &Orders, output: &OwnedFd) -> io::Result<RunningFile> {
    let spec = &orders.spec;
    let mut running = about(orders)?;
    let text = |bytes: &[u8]| CString::new(bytes).map_err(io::Error::from);
    let program = text(running.child.executable.as_os_str().as_bytes())?;
    let name = std::iter::once(spec.program.as_os_str().as_bytes());
    let args = name.chain(spec.args.iter().map(String::as_bytes)).map(text).collect::<io::Result<Vec<CString>>>()?;
    let env = spec.environment()?;
    let env = env.iter().map(|(name, value)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat()));
    let env = env.collect::<io::Result<Vec<CString>>>()?;
    let (mut failures, mut failure) = io::pipe()?;
    let Some(pid) = clone_process(0)? else {
        drop(failures);
        let ready = prepare_alone(state, &running, &spec.dir, output);
        let why = ready.err().unwrap_or_else(|| become_program(&program, &args, &env));
        let _ = failure.write_all(why.to_string().as_bytes());
        exit_now(NOT_EXECUTED)
    };
    drop(failure);
    let mut said = String::new();
    failures.read_to_string(&mut said)?;
    if !said.is_empty() {
        let _ = rustix::process::waitpid(Pid::from_raw(pid.cast_signed()), rustix::process::WaitOptions::empty());
        return Err(io::Error::other(said));
    }
    running.child.pid = pid;
    running.child.started_ticks = stat(pid)?.started_ticks;
    Ok(running)
}

/// What the process that becomes the program does before: signals, a group and descriptors as it expects them, and its name on
/// record.
fn prepare_alone(state: &StateDir, running: &RunningFile, dir: &Path, output: &OwnedFd) -> io::Result<()> {
    usual_signals();
    rustix::process::setpgid(None, None)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(output)?;
    rustix::stdio::dup2_stderr(output)?;
    rustix::process::chdir(dir)?;
    close_on_exec_from(3)?;
    let mut own = running.clone();
    own.child.pid = std::process::id();
    own.child.started_ticks = stat(own.child.pid)?.started_ticks;
    own.write(&state.running())
}

fn not_started(state: &StateDir, orders: &Orders, error: io::Error) -> Fault {
    record_not_started(state, orders, &error.to_string());
    Fault::new(Code::NotExecuted, format!("cannot execute `{}`", orders.spec.program.display()))
        .hint("see that it is there, is executable, and is made for this machine")
        .caused_by(error)
}

fn record_not_started(state: &StateDir, orders: &Orders, error: &str) {
    let spec = &orders.spec;
    let record = ExitRecord {
        reason: Reason::NotStarted,
        code: None,
        signal: None,
        clean: false,
        asked_by: None,
        error: Some(error.to_owned()),
        started_at_ms: now_ms(),
        ended_at_ms: now_ms(),
        pid: 0,
        config_hash: spec.config_hash.clone(),
        etcd_version: spec.etcd_version.clone(),
        last_revision: None,
    };
    // The fault says the same; without a record the next start only looks more closely.
    let _ = exit_record::write(&RealDisk, &state.record(), &record);
}

impl Keeper {
    fn run(mut self) -> Result<(), Fault> {
        let end = loop {
            let now = Instant::now();
            while let Some(send) = self.stop.as_mut().and_then(|stop| stop.next(now)) {
                self.send(send);
            }
            let wait = self.stop.as_ref().and_then(|stop| stop.wait(now)).unwrap_or(Duration::from_secs(3600));
            match self.events.recv_timeout(wait) {
                Ok(Event::Ended(end)) => break end,
                Ok(Event::Signal(name)) => self.stop(StopOrder {
                    asked_by: format!("{name} sent to the shim"),
                    ladder: self.orders.spec.ladder.clone(),
                    last_revision: None,
                }),
                Ok(Event::Asked(ask, reply)) => {
                    let answer = self.answer(ask);
                    let _ = reply.send(answer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break Err(io::Error::other("every thread is gone")),
            }
        };
        self.conclude(end)
    }

    fn answer(&mut self, ask: Ask) -> Answer {
        match ask {
            Ask::Status => {}
            Ask::Stop(order) if order.ladder.is_empty() => return Answer::Refused("a stop without steps".to_owned()),
            Ask::Stop(order) => self.stop(order),
            Ask::Note { revision } => self.noted = self.noted.max(Some(revision)),
            Ask::Dump { asked_by } => {
                let ladder = Rung::usual().into_iter().filter(|rung| rung.send != Send::Term).collect();
                self.stop(StopOrder { asked_by, ladder, last_revision: None });
            }
        }
        Answer::Ok(Status {
            child: self.running.child.clone(),
            config_hash: self.running.config_hash.clone(),
            stopping: self.stop.as_ref().map(|stop| stop.order.asked_by.clone()),
            log: self.shared.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
        })
    }

    fn stop(&mut self, order: StopOrder) {
        self.shared.stopping.store(true, Ordering::Release);
        let now = Instant::now();
        match &mut self.stop {
            Some(stop) => stop.hurry(&order, now),
            None => self.stop = Some(Stopping::new(order, now)),
        }
    }

    fn send(&self, send: Send) {
        // The first process of a box hands signals on, and takes all of the box with it when it is killed.
        let Some(pid) = i32::try_from(self.main).ok().and_then(Pid::from_raw) else { return };
        // It may have ended in this moment: as our unburied child it still has its number, and the signal is lost.
        let _ = match send {
            Send::Term => kill_process(pid, Signal::TERM),
            Send::Int => kill_process(pid, Signal::INT),
            Send::Quit => {
                self.shared.dumping.store(true, Ordering::Release);
                kill_process(pid, Signal::QUIT)
            }
            Send::Kill if self.kept.is_some() => kill_process(pid, Signal::KILL),
            Send::Kill => kill_process_group(pid, Signal::KILL),
        };
    }

    /// Ends what is left, takes the last lines, and writes the record.
    fn conclude(self, end: io::Result<End>) -> Result<(), Fault> {
        let gone = end_all(self.main);
        // The program had a box made for a child, and may have been killed before it could clear away.
        if rustix::fs::unlink(self.state.path().join(INNER)).is_ok() {
            crate::sandbox::clear_after(&self.running.child);
        }
        let end = end.map(|end| self.kept.as_ref().and_then(Kept::ended).map_or(end, End::from));
        drop(self.kept);
        drop(self.log_over);
        let _ = self.log.join();
        let Ok(end) = end else {
            return Err(Fault::new(Code::ShimFailed, "the shim cannot wait for its program"));
        };
        if !gone {
            return Err(Fault::new(Code::NotEnding, "something of the program does not end, not even by SIGKILL"));
        }
        let spec = self.orders.spec;
        let said = spec.stopping_words.is_empty() || self.shared.said_stopping.load(Ordering::Acquire);
        let reason = reason(self.stop.as_ref().and_then(|stop| stop.sent), end, said);
        let (code, signal) = match end {
            End::Code(code) => (Some(code), None),
            End::Signal(signal) => (None, Some(signal)),
        };
        let record = ExitRecord {
            reason,
            code,
            signal,
            clean: reason == Reason::Stopped,
            asked_by: self.stop.as_ref().map(|stop| stop.order.asked_by.clone()),
            error: None,
            started_at_ms: self.running.started_at_ms,
            ended_at_ms: now_ms(),
            pid: self.running.child.pid,
            config_hash: spec.config_hash,
            etcd_version: spec.etcd_version,
            last_revision: self.stop.as_ref().and_then(|stop| stop.order.last_revision).max(self.noted),
        };
        let written = write_record(&self.state.record(), &record);
        let _ = rustix::fs::unlink(self.state.socket());
        written
    }
}

/// A disk may be full just now, and the record is worth some patience: without it the next start reads all data.
fn write_record(path: &Path, record: &ExitRecord) -> Result<(), Fault> {
    let mut tried = 1;
    loop {
        match exit_record::write(&RealDisk, path, record) {
            Err(fault) if fault.code() == Code::DiskFull && tried < RECORD_TRIES => tried += 1,
            done => return done,
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// What an end means, given what was sent last and whether the words of an orderly end were said.
fn reason(sent: Option<Send>, end: End, said: bool) -> Reason {
    let orderly = matches!(end, End::Code(0) | End::Signal(libc::SIGTERM | libc::SIGINT));
    match (sent, end) {
        (Some(Send::Term | Send::Int), _) if orderly && said => Reason::Stopped,
        (Some(Send::Term | Send::Int), _) => Reason::StoppedBadly,
        (Some(Send::Quit | Send::Kill), _) => Reason::Killed,
        (None, End::Code(_)) => Reason::Exited,
        (None, End::Signal(_)) => Reason::Signalled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_orderly_end_that_was_asked_for_counts_as_one() {
        let term = End::Signal(libc::SIGTERM);
        assert_eq!(reason(Some(Send::Term), term, true), Reason::Stopped);
        assert_eq!(reason(Some(Send::Term), End::Code(0), true), Reason::Stopped);
        assert_eq!(reason(Some(Send::Term), term, false), Reason::StoppedBadly);
        assert_eq!(reason(Some(Send::Term), End::Code(1), true), Reason::StoppedBadly);
        assert_eq!(reason(Some(Send::Term), End::Signal(libc::SIGKILL), true), Reason::StoppedBadly);
        assert_eq!(reason(Some(Send::Quit), term, true), Reason::Killed);
        assert_eq!(reason(None, term, true), Reason::Signalled);
        assert_eq!(reason(None, End::Code(0), true), Reason::Exited);
    }
}
