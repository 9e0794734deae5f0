//! Decides which parts a box gets: the declared box against what this machine can give.
//!
//! **Invariant:** a part that is wanted and not fully there is either the reason of a refusal or stands in the warnings.

use serde::{Deserialize, Serialize};

use super::spec::{BoxSpec, Escape, Level};

/// Processes and threads of a strict box that does not say how many: a Go program has some dozens.
const PIDS_DEFAULT: u32 = 512;
/// Whom a strict box runs as if it does not say.
const USER_DEFAULT: &str = "nobody";

/// One part of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// A user of its own.
    User,
    /// No program can give it more rights (`no_new_privs`).
    Privileges,
    /// Empty capability sets, and an empty bounding set.
    Capabilities,
    /// A root of its own with only what it needs in it (mount namespace).
    Root,
    /// It sees no process but its own (pid namespace).
    Processes,
    /// `/proc` with nothing of the machine in it.
    Proc,
    /// Shared memory and message queues of its own (ipc namespace).
    Ipc,
    /// A host name of its own (uts namespace).
    Hostname,
    /// Landlock's rules about files.
    Files,
    /// Landlock's rules about TCP ports.
    Ports,
    /// No signals and no abstract sockets out of the box (Landlock).
    Scope,
    /// The list of system calls (seccomp).
    Syscalls,
    /// No core files, a limit of open files.
    Rlimits,
    /// A limit of memory.
    Memory,
    /// A limit of processes and threads.
    Pids,
    /// A limit of processor time.
    Cpu,
    /// How readily it is ended when memory runs out.
    OomScore,
}

impl Part {
    /// All of them, in the order in which they are explained.
    pub const ALL: [Part; 17] = [
        Part::User,
        Part::Privileges,
        Part::Capabilities,
        Part::Root,
        Part::Processes,
        Part::Proc,
        Part::Ipc,
        Part::Hostname,
        Part::Files,
        Part::Ports,
        Part::Scope,
        Part::Syscalls,
        Part::Rlimits,
        Part::Memory,
        Part::Pids,
        Part::Cpu,
        Part::OomScore,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Part::User => "user",
            Part::Privileges => "no new privileges",
            Part::Capabilities => "capabilities",
            Part::Root => "root of its own",
            Part::Processes => "processes of its own",
            Part::Proc => "/proc",
            Part::Ipc => "ipc of its own",
            Part::Hostname => "host name of its own",
            Part::Files => "files",
            Part::Ports => "ports",
            Part::Scope => "signals and sockets out",
            Part::Syscalls => "system calls",
            Part::Rlimits => "open files, core files",
            Part::Memory => "memory",
            Part::Pids => "processes and threads",
            Part::Cpu => "processor",
            Part::OomScore => "out-of-memory score",
        }
    }
}

/// What a machine can give of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// All of it.
    Full,
    /// Something weaker, and what it lacks.
    Less(String),
    /// Nothing, and why.
    No(String),
}

/// What was seen of a machine, for the user who looked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's release.
    pub kernel: String,
    /// Whether it takes a user namespace to have namespaces at all.
    pub user_namespace: bool,
    /// One offer for each part.
    pub offers: Vec<(Part, Offer)>,
}

impl Machine {
    /// What it can give of a part. What was not looked at is not there.
    pub fn offer(&self, part: Part) -> Offer {
        let found = self.offers.iter().find(|(offered, _)| *offered == part);
        found.map_or_else(|| Offer::No("it was not looked for".to_owned()), |(_, offer)| offer.clone())
    }
}

/// What becomes of a part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is enforced.
    On,
    /// A weaker form of it is enforced, and what that lacks.
    Weaker(String),
    /// It was wanted and cannot be had here, and why.
    Missing(String),
    /// It was not wanted, and by what.
    Unwanted(String),
}

/// One part of a planned box.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The part.
    pub part: Part,
    /// What becomes of it.
    pub state: State,
}

/// A box with every choice made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxPlan {
    /// The declared box, with what it did not say filled in.
    pub spec: BoxSpec,
    /// Whether it takes a user namespace.
    pub user_namespace: bool,
    /// Every part.
    pub parts: Vec<Planned>,
}

/// Why a strict box cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The parts that are missing, and why.
    pub parts: Vec<(Part, String)>,
}

impl BoxPlan {
    /// Whether a part is there in any form.
    pub fn has(&self, part: Part) -> bool {
        self.parts.iter().any(|planned| planned.part == part && matches!(planned.state, State::On | State::Weaker(_)))
    }

    /// Whether a part is there in its whole form.
    pub fn has_whole(&self, part: Part) -> bool {
        self.parts.iter().any(|planned| planned.part == part && planned.state == State::On)
    }

    /// What was wanted and is not, or not fully, enforced.
    pub fn warnings(&self) -> Vec<String> {
        let said = |planned: &Planned| match &planned.state {
            State::Weaker(why) => Some(format!("{}: only in part: {why}", planned.part.name())),
            State::Missing(why) => Some(format!("{}: not enforced: {why}", planned.part.name())),
            State::On | State::Unwanted(_) => None,
        };
        self.parts.iter().filter_map(said).collect()
    }
}

/// Decides. A refusal names every part that is missing, not just the first.
pub fn plan_box(spec: &BoxSpec, machine: &Machine) -> Result<BoxPlan, Refused> {
    let mut spec = spec.clone();
    if spec.level == Level::Strict {
        spec.user.get_or_insert_with(|| USER_DEFAULT.to_owned());
        spec.limits.pids.get_or_insert(PIDS_DEFAULT);
    }
    let mut missing = Vec::new();
    let mut parts = Vec::new();
    for part in Part::ALL {
        let state = match (unwanted(&spec, part), machine.offer(part)) {
            (Some(why), _) => State::Unwanted(why.to_owned()),
            (None, Offer::Full) => State::On,
            (None, Offer::Less(why)) => State::Weaker(why),
            (None, Offer::No(why)) => State::Missing(why),
        };
        if let (State::Weaker(why) | State::Missing(why), Level::Strict) = (&state, spec.level)
            && may_not_miss(part)
        {
            missing.push((part, why.clone()));
        }
        parts.push(Planned { part, state });
    }
    if missing.is_empty() {
        Ok(BoxPlan { spec, user_namespace: machine.user_namespace, parts })
    } else {
        Err(Refused { parts: missing })
    }
}

/// Older kernels have no rules about ports or scopes, and are in wide use.
fn may_not_miss(part: Part) -> bool {
    !matches!(part, Part::Ports | Part::Scope)
}

fn unwanted(spec: &BoxSpec, part: Part) -> Option<&'static str> {
    let escape = |escape: Escape| spec.has(escape).then(|| escape.name());
    let not_asked = |asked: bool| (!asked).then_some("not asked for");
    if spec.level == Level::Off {
        return Some("the box is off");
    }
    match part {
        Part::User => not_asked(spec.user.is_some()),
        Part::Root | Part::Proc | Part::Files => escape(Escape::AllFiles),
        Part::Ports => escape(Escape::AllPorts),
        Part::Syscalls => escape(Escape::AllSyscalls),
        Part::Memory => not_asked(spec.limits.memory_bytes.is_some()),
        Part::Pids => not_asked(spec.limits.pids.is_some()),
        Part::Cpu => not_asked(spec.limits.cpu_percent.is_some()),
        Part::OomScore => not_asked(spec.limits.oom_score.is_some()),
        Part::Privileges
        | Part::Capabilities
        | Part::Processes
        | Part::Ipc
        | Part::Hostname
        | Part::Scope
        | Part::Rlimits => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(lacks: &[(Part, Offer)]) -> Machine {
        let offer = |part: Part| {
            let lack = lacks.iter().find(|(lacking, _)| *lacking == part);
            (part, lack.map_or(Offer::Full, |(_, offer)| offer.clone()))
        };
        Machine { kernel: "6.1".to_owned(), user_namespace: false, offers: Part::ALL.map(offer).to_vec() }
    }

    fn no(part: Part) -> (Part, Offer) {
        (part, Offer::No("this kernel has none".to_owned()))
    }

    #[test]
    fn strict_is_whole_or_refused_with_every_reason() {
        let spec = BoxSpec::new(Level::Strict);
        let whole = plan_box(&spec, &machine(&[])).unwrap();
        assert_eq!((whole.warnings(), whole.spec.user.as_deref()), (vec![], Some("nobody")));
        let refused = plan_box(&spec, &machine(&[no(Part::Files), no(Part::Root)])).unwrap_err();
        let parts: Vec<Part> = refused.parts.iter().map(|(part, _)| *part).collect();
        assert_eq!(parts, [Part::Root, Part::Files]);
        let weaker = (Part::User, Offer::Less("its groups stay".to_owned()));
        assert_eq!(plan_box(&spec, &machine(&[weaker])).unwrap_err().parts.len(), 1);
    }

    #[test]
    fn rules_about_ports_may_be_missing_and_that_is_said() {
        let plan = plan_box(&BoxSpec::new(Level::Strict), &machine(&[no(Part::Ports)])).unwrap();
        assert_eq!(plan.warnings(), ["ports: not enforced: this kernel has none"]);
        assert!(!plan.has(Part::Ports) && plan.has(Part::Files));
    }

    #[test]
    fn basic_takes_what_there_is_and_names_the_rest() {
        let lacks = [no(Part::Root), (Part::Memory, Offer::Less("per process".to_owned()))];
        let mut spec = BoxSpec::new(Level::Basic);
        let plan = plan_box(&spec, &machine(&lacks)).unwrap();
        assert_eq!(plan.warnings(), ["root of its own: not enforced: this kernel has none"]);
        spec.limits.memory_bytes = Some(1 << 20);
        let plan = plan_box(&spec, &machine(&lacks)).unwrap();
        assert!(plan.has(Part::Memory) && !plan.has_whole(Part::Memory));
        assert_eq!(plan.warnings().len(), 2);
    }

    #[test]
    fn what_was_not_looked_at_is_not_there() {
        let blind = Machine { kernel: String::new(), user_namespace: false, offers: vec![] };
        assert!(plan_box(&BoxSpec::new(Level::Strict), &blind).is_err());
        assert!(plan_box(&BoxSpec::new(Level::Off), &blind).unwrap().warnings().is_empty());
    }

    #[test]
    fn a_hole_is_made_by_its_name_only() {
        let spec = BoxSpec { escapes: vec![Escape::AllFiles], ..BoxSpec::new(Level::Strict) };
        let plan = plan_box(&spec, &machine(&[no(Part::Root), no(Part::Files)])).unwrap();
        let root = plan.parts.iter().find(|planned| planned.part == Part::Root).unwrap();
        assert_eq!(root.state, State::Unwanted("all-files".to_owned()));
    }
}
