//! The keeper's side: makes the box, learns which process the program is, and how it ended.
//!
//! **Invariant:** between [`prepare`] and [`Waiting::run`] the program exists, has given up its rights, and has not run.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_plan::boxes::{BoxPlan, Escape, Part};
use rustix::net::RecvFlags;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use rustix::thread::CapabilitySet;

use super::cgroup::{Groups, Places};
use super::held::Held;
use super::init::be_init;
use super::kernel::{NAMESPACES, USER_NAMESPACE};
use super::needs::Needs;
use super::program::Recipe;
use super::rights::{User, kept};
use super::syscalls::Filter;
use super::talk::{End, Word, hear, pair, say};
use super::view::View;

/// What is to be run, and how.
#[derive(Debug)]
pub struct Launch {
    /// The program.
    pub program: PathBuf,
    /// What it is called, and its arguments.
    pub args: Vec<OsString>,
    /// All of its environment.
    pub env: Vec<(OsString, OsString)>,
    /// Where it starts; the root if the box has no such directory.
    pub dir: PathBuf,
    /// Where its output goes; `None`: where ours goes.
    pub output: Option<OwnedFd>,
    /// In a process group of its own, and without stdin.
    pub apart: bool,
    /// The box ends when the process that made it does.
    pub with_keeper: bool,
}

/// A program in its box, before its first instruction.
#[derive(Debug)]
pub struct Waiting {
    kept: Kept,
    held: Held,
}

/// A program in its box.
#[derive(Debug)]
pub struct Kept {
    init: u32,
    program: u32,
    socket: OwnedFd,
    groups: Groups,
}

/// Makes the box and the program's process. The process that calls must have one thread.
pub fn prepare(plan: &BoxPlan, launch: Launch) -> Result<Waiting, Fault> {
    let shown = launch.program.display().to_string();
    let recipe = recipe(plan, launch)?;
    let failed = |what: &str, error: io::Error| not_made(&shown, what, &error.to_string());
    let mut groups =
        Groups::make(&Places::planned(), &whole_limits(plan)).map_err(|error| failed("make its cgroups", error))?;
    let (ours, theirs) = pair().map_err(|error| failed("make a socket", error))?;
    let init = match groups.clone_process(namespaces(plan)).map_err(|error| failed("make its namespaces", error))? {
        Some(init) => init,
        None => {
            drop(ours);
            be_init(&recipe, theirs, groups)
        }
    };
    drop(theirs);
    let held = Held::new(recipe.plan, recipe.view);
    let mut kept = Kept { init, program: 0, socket: ours, groups };
    match kept.introduce(plan) {
        Ok(program) => {
            kept.program = program;
            Ok(Waiting { kept, held })
        }
        Err((what, error)) => {
            kept.end();
            Err(not_made(&shown, &what, &error))
        }
    }
}

fn not_made(shown: &str, what: &str, error: &str) -> Fault {
    if what.is_empty() {
        return Fault::new(Code::NotExecuted, format!("cannot execute `{shown}` in its box"))
            .hint("see that it is executable for the user of the box, and made for this machine")
            .caused_by(error.to_owned());
    }
    Fault::new(Code::BoxFailed, format!("cannot box `{shown}`: could not {what}"))
        .hint("see `quorate box explain`; a lower --level asks for less")
        .caused_by(error.to_owned())
}

/// Limits that cgroups are to enforce.
fn whole_limits(plan: &BoxPlan) -> quorate_plan::boxes::Limits {
    let mut limits = plan.spec.limits.clone();
    limits.memory_bytes = limits.memory_bytes.filter(|_| plan.has_whole(Part::Memory));
    limits.pids = limits.pids.filter(|_| plan.has_whole(Part::Pids));
    limits.cpu_percent = limits.cpu_percent.filter(|_| plan.has_whole(Part::Cpu));
    limits
}

fn namespaces(plan: &BoxPlan) -> u64 {
    if !plan.has(Part::Processes) {
        return 0;
    }
    if plan.user_namespace { NAMESPACES | USER_NAMESPACE } else { NAMESPACES }
}

fn recipe(plan: &BoxPlan, launch: Launch) -> Result<Recipe, Fault> {
    let needs = Needs::of(&launch.program)?;
    let view = View::new(&plan.spec, &needs)?;
    let user = plan.spec.user.as_deref().filter(|_| plan.has(Part::User)).map(User::find).transpose()?;
    let keep = if plan.has(Part::Capabilities) { kept(&plan.spec.capabilities)? } else { CapabilitySet::empty() };
    let filter =
        plan.has(Part::Syscalls).then(|| Filter::new(&plan.spec.syscalls, plan.spec.has(Escape::ExecutableData)));
    let filter = filter.transpose();
    let filter = filter.map_err(|error| Fault::new(Code::Internal, "cannot make a filter").caused_by(error))?;
    let text = |bytes: &[u8]| {
        CString::new(bytes).map_err(|error| Fault::new(Code::Usage, "an argument holds a zero byte").caused_by(error))
    };
    let pair = |(name, value): &(OsString, OsString)| text(&[name.as_bytes(), b"=", value.as_bytes()].concat());
    Ok(Recipe {
        program: text(needs.program.as_os_str().as_bytes())?,
        args: launch.args.iter().map(|arg| text(arg.as_bytes())).collect::<Result<_, _>>()?,
        env: launch.env.iter().map(pair).collect::<Result<_, _>>()?,
        dir: text(launch.dir.as_os_str().as_bytes())?,
        plan: plan.clone(),
        view,
        user,
        keep,
        filter,
        output: launch.output,
        apart: launch.apart,
        with_keeper: launch.with_keeper,
    })
}

impl Waiting {
    /// The box's first process, whose end is the box's.
    pub fn init(&self) -> u32 {
        self.kept.init
    }

    /// The program's process.
    pub fn program(&self) -> u32 {
        self.kept.program
    }

    /// What it is held by, for those that are to be held in the same way.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Lets it run. Returns when it has been executed.
    pub fn run(mut self, shown: &Path) -> Result<Kept, Fault> {
        let said = say(&self.kept.socket, &Word::Run).and_then(|()| hear(&self.kept.socket, RecvFlags::empty()));
        let (what, error) = match said {
            Ok(Some((Word::Started, _))) => return Ok(self.kept),
            Ok(Some((Word::Failed { what, error }, _))) => (what, error),
            Ok(Some((word, _))) => ("understand its init".to_owned(), format!("{word:?}")),
            Ok(None) => ("run it".to_owned(), "its init has ended".to_owned()),
            Err(error) => ("speak to its init".to_owned(), error.to_string()),
        };
        self.kept.end();
        Err(not_made(&shown.display().to_string(), &what, &error))
    }
}

impl Kept {
    /// The box's first process: signals that are sent to it reach the program, and its end is the box's.
    pub fn init(&self) -> u32 {
        self.init
    }

    /// The program's process.
    pub fn program(&self) -> u32 {
        self.program
    }

    /// How the program ended, once the init has; `None`: the init was ended before it could say.
    pub fn ended(&self) -> Option<End> {
        loop {
            match hear(&self.socket, RecvFlags::DONTWAIT) {
                Ok(Some((Word::Ended(end), _))) => return Some(end),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return None,
            }
        }
    }

    /// Gives the init what only its maker can give, and waits until the program stands before its execution.
    fn introduce(&self, plan: &BoxPlan) -> Result<u32, (String, String)> {
        let at = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| (what, error.to_string())
        };
        if plan.user_namespace && plan.has(Part::Processes) {
            map_user(self.init).map_err(at("map its user"))?;
        }
        if let (Some(score), true) = (plan.spec.limits.oom_score, plan.has(Part::OomScore)) {
            put(self.init, "oom_score_adj", &score.to_string()).map_err(at("set its out-of-memory score"))?;
        }
        self.groups.take_in(self.init).map_err(at("put it into its cgroups"))?;
        // One that has ended by now may have said why.
        let told = say(&self.socket, &Word::Go);
        match hear(&self.socket, RecvFlags::empty()).map_err(at("hear from it"))? {
            Some((Word::Ready, program)) if program != 0 => Ok(program),
            Some((Word::Failed { what, error }, _)) => Err((what, error)),
            Some((word, _)) => Err(("understand it".to_owned(), format!("{word:?}"))),
            None => {
                told.map_err(at("speak to its init"))?;
                Err(("hear from it".to_owned(), "it has ended".to_owned()))
            }
        }
    }

    /// How the program ended, if all of the box has.
    pub fn try_wait(&mut self) -> io::Result<Option<End>> {
        let Some(init) = i32::try_from(self.init).ok().and_then(Pid::from_raw) else { return Ok(self.ended()) };
        match waitpid(Some(init), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => {
                // It is buried: its number may be another's.
                self.init = 0;
                let own = status.terminating_signal().map_or(End::Code(125), End::Signal);
                Ok(Some(self.ended().unwrap_or(own)))
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends all of the box and waits for that.
    pub fn end(&mut self) {
        let Some(init) = i32::try_from(self.init).ok().and_then(Pid::from_raw) else { return };
        let _ = kill_process(init, Signal::KILL);
        while matches!(waitpid(Some(init), WaitOptions::empty()), Err(rustix::io::Errno::INTR)) {}
        self.init = 0;
    }
}

fn put(pid: u32, file: &str, value: &str) -> io::Result<()> {
    use io::Write;
    std::fs::File::options().write(true).open(format!("/proc/{pid}/{file}"))?.write_all(value.as_bytes())
}

/// The user is itself inside, and nobody else is anybody.
fn map_user(pid: u32) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    put(pid, "uid_map", &format!("{uid} {uid} 1"))?;
    put(pid, "setgroups", "deny")?;
    put(pid, "gid_map", &format!("{gid} {gid} 1"))
}
