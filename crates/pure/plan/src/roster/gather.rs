//! Decides, answer by answer, whether a list is complete, worth waiting for, or to be refused.
//!
//! **Invariant:** no answer is never taken for an empty list: it is [`Err`] here, and it is named in what the operator reads.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate_faults::{Code, Fault};

use super::{Roster, human, names, quoted};

/// What a source says when it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Who is there.
    pub roster: Roster,
    /// Who is known to the source but does not count yet, and why.
    pub absent: Vec<Absent>,
}

/// A member that its source knows of but does not offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its name.
    pub name: String,
    /// "its health check is `critical`".
    pub why: String,
}

impl From<Roster> for Answer {
    fn from(roster: Roster) -> Answer {
        Answer { roster, absent: Vec::new() }
    }
}

/// What to do after an answer.
#[derive(Debug)]
pub enum Next {
    /// The list is complete.
    Done(Roster),
    /// Ask again; the text tells the operator who is missing.
    Wait(String),
    /// Asking again would not help.
    Refuse(Fault),
}

/// One attempt to gather a complete list, over as many answers as it takes.
#[derive(Debug)]
pub struct Gathering {
    provenance: String,
    expect: Option<usize>,
    settled: bool,
    known: BTreeSet<String>,
    latest: Latest,
}

#[derive(Debug)]
enum Latest {
    Nothing,
    Short { present: Vec<String>, missing: String },
    Silent { fault: Fault, before: Vec<String> },
}

impl Gathering {
    /// `settled` says that the source can never answer differently, so that waiting is pointless.
    pub fn new(provenance: impl Into<String>, expect: Option<usize>, settled: bool) -> Gathering {
        let provenance = provenance.into();
        Gathering { provenance, expect, settled, known: BTreeSet::new(), latest: Latest::Nothing }
    }

    /// Takes one answer in.
    pub fn take(&mut self, answer: Result<Answer, Fault>) -> Next {
        match answer {
            Ok(answer) => self.take_list(answer),
            Err(fault) if self.expect.is_some() && !self.settled && is_silence(fault.code()) => {
                let wanted = self.expect.unwrap_or_default();
                let progress = format!("waiting for {}: {fault}", members(wanted));
                let before = match std::mem::replace(&mut self.latest, Latest::Nothing) {
                    Latest::Nothing => Vec::new(),
                    Latest::Short { present, .. } => present,
                    Latest::Silent { before, .. } => before,
                };
                self.latest = Latest::Silent { fault, before };
                Next::Wait(progress)
            }
            Err(fault) => Next::Refuse(fault),
        }
    }

    fn take_list(&mut self, answer: Answer) -> Next {
        let have = answer.roster.members.len();
        let wanted = self.expect.unwrap_or(have);
        // An empty list that is waited for is merely short; every other bad list is refused at once.
        if (have > 0 || self.expect.is_none())
            && let Err(fault) = answer.roster.check()
        {
            return Next::Refuse(fault);
        }
        if have > wanted {
            return Next::Refuse(self.too_many(&answer.roster, wanted));
        }
        if have == wanted {
            return match have {
                0 => Next::Refuse(answer.roster.empty_fault()),
                _ => Next::Done(answer.roster),
            };
        }
        let missing = self.who_is_missing(&answer, wanted - have);
        let present: Vec<String> = answer.roster.members.into_iter().map(|member| member.name).collect();
        self.known.extend(present.iter().cloned());
        let progress = format!("{have} of {wanted} members in {}: {missing}", quoted(&self.provenance));
        self.latest = Latest::Short { present, missing };
        match self.settled {
            true => Next::Refuse(self.too_few(None)),
            false => Next::Wait(progress),
        }
    }

    /// The fault when there is no time left.
    pub fn give_up(mut self, waited: Duration) -> Fault {
        match std::mem::replace(&mut self.latest, Latest::Nothing) {
            Latest::Silent { fault, before } => self.fell_silent(fault, &before, waited),
            latest @ (Latest::Nothing | Latest::Short { .. }) => {
                self.latest = latest;
                self.too_few(Some(waited))
            }
        }
    }

    fn who_is_missing(&self, answer: &Answer, count: usize) -> String {
        let present: BTreeSet<&str> = answer.roster.names().into_iter().collect();
        let excused: BTreeSet<&str> = answer.absent.iter().map(|absent| absent.name.as_str()).collect();
        let gone: Vec<&str> = (self.known.iter().map(String::as_str))
            .filter(|name| !present.contains(name) && !excused.contains(name))
            .collect();
        let mut parts: Vec<String> = answer
            .absent
            .iter()
            .map(|absent| format!("{} does not count ({})", quoted(&absent.name), absent.why))
            .collect();
        if !gone.is_empty() {
            let verb = if gone.len() == 1 { "was" } else { "were" };
            parts.push(format!("{} {verb} there and left", names(gone.iter().copied())));
        }
        let unnamed = count.saturating_sub(answer.absent.len() + gone.len());
        if unnamed > 0 {
            let present = names(present.iter().copied());
            parts.push(format!("{} not seen yet (have {present})", members(unnamed)));
        }
        parts.join(", ")
    }

    fn too_many(&self, roster: &Roster, wanted: usize) -> Fault {
        let attempt = format!(
            "the list from {} has {}, more than `--expect {wanted}`: {}",
            quoted(&self.provenance),
            members(roster.members.len()),
            names(roster.names())
        );
        Fault::new(Code::RosterTooMany, attempt).hint("remove who does not belong, or correct `--expect` on every node")
    }

    fn too_few(&self, waited: Option<Duration>) -> Fault {
        let wanted = self.expect.unwrap_or_default();
        let (have, missing) = match &self.latest {
            Latest::Short { present, missing } => (present.len(), missing.as_str()),
            Latest::Nothing | Latest::Silent { .. } => (0, "no answer came"),
        };
        let when = waited.map(|waited| format!(" after {}", human(waited))).unwrap_or_default();
        let attempt =
            format!("the list from {} has {have} of {wanted} members{when}: {missing}", quoted(&self.provenance));
        let hint = match waited {
            Some(_) => "add who is missing, raise `--wait`, or correct `--expect` on every node",
            None => "this list does not change by waiting: add who is missing, or correct `--expect` on every node",
        };
        Fault::new(Code::RosterTooFew, attempt).hint(hint)
    }

    fn fell_silent(&self, fault: Fault, before: &[String], waited: Duration) -> Fault {
        let wanted = members(self.expect.unwrap_or_default());
        let attempt = match before {
            [] => format!("no list of {wanted} from {} after {}", quoted(&self.provenance), human(waited)),
            _ => format!(
                "no list of {wanted} from {} after {}: it answered with {} before and is silent now",
                quoted(&self.provenance),
                human(waited),
                names(before.iter().map(String::as_str))
            ),
        };
        let hint = fault.hint_text().unwrap_or("see the cause").to_owned();
        Fault::new(Code::SourceUnreachable, attempt).hint(hint).caused_by(fault)
    }
}

/// Faults that may pass by themselves.
fn is_silence(code: Code) -> bool {
    code == Code::SourceUnreachable
}

fn members(count: usize) -> String {
    match count {
        1 => "1 member".to_owned(),
        _ => format!("{count} members"),
    }
}
