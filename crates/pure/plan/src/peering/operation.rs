//! One change of peers, from its reservation to its record: what is done next, given what is seen.
//!
//! ```text
//!   join, to-server:  reserved ──► given ──► joined, changed     detach, to-client:  reserved ──► given ──► detached, changed
//!                                    └──► undoing ──► undone
//!   clients, who are in no file:  reserved ──► given (nothing) ──► joined, detached
//! ```
//!
//! **Invariant:** every state is on disk before it is acted on, and every act may be repeated; so whoever is killed goes on, and a
//! newcomer that does not come in its time leaves no trace.

use serde::{Deserialize, Serialize};

use super::{Newcomer, Role};

/// A change of peers that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Tells two operations apart.
    pub id: String,
    /// What is done.
    pub kind: Kind,
    /// The cluster file that it leads to.
    pub text: String,
    /// The hash of the file that it began with.
    pub before: String,
    /// Hashes of files that were its own before this one, or that it began with before it was turned back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<String>,
    /// Whether the node that carries it out, which takes its file last, has taken it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub taken: bool,
    /// Members that are lost, and are taken out with it: while they are missing, nothing else changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// When it was begun, in ms since 1970.
    pub at_ms: u64,
    /// A newcomer that does not vote by then is taken out again.
    pub deadline_ms: u64,
    /// How far it is.
    pub step: Step,
}

impl Operation {
    /// Whether it can still be taken back: what comes can be sent away until it votes, what goes only before anyone heard of it.
    pub fn can_be_taken_back(&self) -> bool {
        match (&self.kind, self.step) {
            (Kind::Join(_) | Kind::ToServer(_), Step::Reserved | Step::Given) | (Kind::ToClient(_), Step::Reserved) => {
                true
            }
            (Kind::Join(_) | Kind::ToServer(_) | Kind::ToClient(_), _) => false,
            (Kind::Detach { .. } | Kind::Enrol(_) | Kind::Discharge { .. }, _) => false,
        }
    }

    /// The same, whose time is over: it is undone, unless the node votes by now.
    #[must_use]
    pub fn taken_back(self, now_ms: u64) -> Operation {
        Operation { deadline_ms: self.deadline_ms.min(now_ms), ..self }
    }

    /// Whether a file may be replaced by that of this change: the one that it began with, and those that were its own. What
    /// somebody else brought meanwhile is theirs.
    pub fn may_replace(&self, file: &str) -> bool {
        self.before == file || self.earlier.iter().any(|known| known == file)
    }

    /// The same, turned back: `text` is its file without the newcomer, `hash` that of its file so far.
    #[must_use]
    pub fn turned_back(self, text: String, hash: String) -> Operation {
        let earlier = self.earlier.into_iter().chain([self.before]).collect();
        Operation { text, before: hash, earlier, taken: false, step: Step::Undoing, ..self }
    }

    /// The same, with a lost member taken out along with it. `text`: its file without that one, `hash`: that of its file so far.
    #[must_use]
    pub fn and_without(self, name: &str, text: String, hash: String) -> Operation {
        let earlier = self.earlier.into_iter().chain([hash]).collect();
        let also = self.also.into_iter().chain([name.to_owned()]).collect();
        Operation { text, earlier, also, taken: false, ..self }
    }

    /// The same, once everybody holds a file that somebody else applied meanwhile: it goes on with that one, if the node that it
    /// is about is in it as it should be, and is turned back otherwise. `hash`: that of its file so far.
    #[must_use]
    pub fn rebased(self, text: String, declares: bool, hash: String) -> Operation {
        let step = match (&self.kind, self.step) {
            (Kind::Join(_) | Kind::ToServer(_), Step::Given) if !declares => Step::Undoing,
            (Kind::Join(_) | Kind::ToServer(_), Step::Undoing) if declares => Step::Given,
            (Kind::Detach { .. } | Kind::ToClient(_), Step::Given) if declares => Step::Undoing,
            (Kind::Detach { .. } | Kind::ToClient(_), Step::Undoing) if !declares => Step::Given,
            (_, step) => step,
        };
        let earlier = self.earlier.into_iter().chain([hash]).collect();
        Operation { text, earlier, taken: true, step, ..self }
    }
}

/// What everybody who answers holds, if that is one file, which is neither that of the change nor one that it may replace: somebody
/// applied it meanwhile. `held`: the files of this node and of all that answer.
pub fn brought<'a>(operation: &Operation, hash: &str, held: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let goes_on = matches!(operation.step, Step::Given | Step::Undoing);
    if !goes_on || matches!(operation.kind, Kind::Enrol(_) | Kind::Discharge { .. }) {
        return None;
    }
    let mut held = held.into_iter();
    let first = held.next()?;
    // Nobody goes back by itself to the file from before once all have had this one.
    let theirs = !operation.may_replace(first) || (operation.taken && operation.before == first);
    (first != hash && theirs && held.all(|file| file == first)).then_some(first)
}

/// What is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A node becomes a member.
    Join(Newcomer),
    /// A member becomes none.
    Detach {
        /// Which.
        name: String,
    },
    /// A node becomes a client: on record, and in no file.
    Enrol(Newcomer),
    /// A client becomes nothing.
    Discharge {
        /// Which.
        name: String,
    },
    /// A member becomes a client.
    ToClient(Newcomer),
    /// A client becomes a member.
    ToServer(Newcomer),
}

impl Kind {
    /// The node that it is about.
    pub fn name(&self) -> &str {
        match self {
            Kind::Join(newcomer) | Kind::Enrol(newcomer) | Kind::ToClient(newcomer) | Kind::ToServer(newcomer) => {
                &newcomer.name
            }
            Kind::Detach { name } | Kind::Discharge { name } => name,
        }
    }

    /// The word.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Join(_) | Kind::Enrol(_) => "join",
            Kind::Detach { .. } | Kind::Discharge { .. } => "detach",
            Kind::ToClient(_) => Kind::TO_CLIENT,
            Kind::ToServer(_) => "to-server",
        }
    }

    /// The word for a member that becomes a client: by it, such a node knows what it is when it is none any more.
    pub const TO_CLIENT: &'static str = "to-client";

    /// Whether it has to be done by its deadline.
    fn has_limit(&self) -> bool {
        match self {
            Kind::Join(_) | Kind::ToClient(_) | Kind::ToServer(_) => true,
            Kind::Detach { .. } | Kind::Enrol(_) | Kind::Discharge { .. } => false,
        }
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Nothing was changed yet.
    Reserved,
    /// The file is being given to every node, and the agents act on it.
    Given,
    /// The file without the newcomer is being given to every node; or everybody holds one that takes it back.
    Undoing,
    /// It is over.
    Done(Outcome),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The node votes.
    Joined,
    /// The node did not come, and is not a member.
    Undone,
    /// The node is no member any more.
    Detached,
    /// The node has its other role.
    Changed,
}

impl Step {
    /// The word.
    pub fn word(self) -> &'static str {
        match self {
            Step::Reserved => "reserved",
            Step::Given => "given",
            Step::Undoing => "undoing",
            Step::Done(Outcome::Joined) => "joined",
            Step::Done(Outcome::Undone) => "undone",
            Step::Done(Outcome::Detached) => "detached",
            Step::Done(Outcome::Changed) => "changed",
        }
    }
}

/// What is seen of it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Now, in ms since 1970.
    pub now_ms: u64,
    /// Whether every node that answers, and this one, holds the file of the operation.
    pub held: bool,
    /// The node in the member list that a quorum confirmed since: whether it votes; none: it is not in it.
    pub listed: Option<bool>,
    /// Whether none of those who are taken out with it is in that list.
    pub also_out: bool,
    /// Whether that list is known, and of after the file was given.
    pub confirmed: bool,
    /// Whether this node still holds the file that it began with.
    pub based: bool,
    /// Whether all that was written before it began is in the store, or there is no store.
    pub backed_up: bool,
    /// What the node itself says that it is; none: it does not answer.
    pub role: Option<Role>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing: it is over.
    Nothing,
    /// Wait, and for what.
    Wait(String),
    /// Write this step down, then look again.
    Write(Step),
    /// Give the file to whoever does not hold it.
    Give,
    /// Make the file without the newcomer, write it down as the one to be given, and go on with that.
    Undo,
    /// Write the record and close it.
    Close(Outcome),
}

/// Decides.
pub fn next(operation: &Operation, seen: &Seen) -> Next {
    let next = next_alone(operation, seen);
    let waits = operation.step != Step::Reserved && !(seen.confirmed && seen.also_out);
    match (&next, operation.also.first()) {
        (Next::Close(_), Some(name)) if waits => Next::Wait(format!("the members to take `{name}` out of their list")),
        _ => next,
    }
}

fn next_alone(operation: &Operation, seen: &Seen) -> Next {
    let late = operation.kind.has_limit() && seen.now_ms >= operation.deadline_ms;
    match (operation.step, &operation.kind) {
        (Step::Done(_), _) => Next::Nothing,
        // The right to change peers comes first, also where the record is all that changes.
        (Step::Reserved, Kind::Enrol(_) | Kind::Discharge { .. }) => Next::Write(Step::Given),
        // Its file was made of one that holds no more, and would undo what somebody else applied.
        (Step::Reserved, _) if late || !seen.based => Next::Close(Outcome::Undone),
        (Step::Reserved, _) if !seen.backed_up => Next::Wait("what was written so far to be backed up".to_owned()),
        (Step::Reserved, _) => Next::Write(Step::Given),
        (Step::Given, Kind::Join(_) | Kind::ToServer(_)) => comes(operation, seen, late),
        (Step::Given, Kind::Detach { .. } | Kind::ToClient(_)) => goes(operation, seen, late),
        (Step::Given, Kind::Enrol(_)) => Next::Close(Outcome::Joined),
        (Step::Given, Kind::Discharge { .. }) => Next::Close(Outcome::Detached),
        (Step::Undoing, _) if !seen.held => Next::Give,
        // Only a file that somebody applied turns these back: the node is declared, and what it becomes of that follows from it.
        (Step::Undoing, Kind::Detach { .. } | Kind::ToClient(_)) => Next::Close(Outcome::Undone),
        (Step::Undoing, _) if seen.confirmed && seen.listed.is_none() => Next::Close(Outcome::Undone),
        (Step::Undoing, kind) => Next::Wait(out_of_the_list(kind)),
    }
}

/// Somebody becomes a member.
fn comes(operation: &Operation, seen: &Seen, late: bool) -> Next {
    let name = operation.kind.name();
    let votes = seen.confirmed && seen.listed == Some(true);
    let was_client = matches!(operation.kind, Kind::ToServer(_));
    match seen.listed {
        Some(true) if votes && seen.held && !was_client => Next::Close(Outcome::Joined),
        Some(true) if votes && seen.held && (late || seen.role == Some(Role::Server)) => Next::Close(Outcome::Changed),
        Some(true) if votes && seen.held => Next::Wait(format!("`{name}` to give its port to etcd")),
        Some(false) | None if late => Next::Undo,
        _ if !seen.held => Next::Give,
        Some(_) => Next::Wait(format!("`{name}` to catch up and vote")),
        None => Next::Wait(format!("the agent of `{name}` to start and to join")),
    }
}

/// A member becomes none.
fn goes(operation: &Operation, seen: &Seen, late: bool) -> Next {
    let kind = &operation.kind;
    if !seen.held {
        return Next::Give;
    }
    if !seen.confirmed || seen.listed.is_some() {
        return Next::Wait(out_of_the_list(kind));
    }
    if !matches!(kind, Kind::ToClient(_)) {
        return Next::Close(Outcome::Detached);
    }
    // Who is off comes back as what the record says.
    match late || seen.role == Some(Role::Client) {
        true => Next::Close(Outcome::Changed),
        false => Next::Wait(format!("`{}` to serve as a client", kind.name())),
    }
}

fn out_of_the_list(kind: &Kind) -> String {
    format!("the members to take `{}` out of their list", kind.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(step: Step) -> Operation {
        let newcomer = Newcomer { name: "n2".to_owned(), address: "10.0.0.2".to_owned(), data_dir: "/d".to_owned() };
        let (id, text, before) = ("x".to_owned(), String::new(), String::new());
        let (earlier, taken, also) = (Vec::new(), false, Vec::new());
        Operation {
            id,
            kind: Kind::Join(newcomer),
            text,
            before,
            earlier,
            taken,
            also,
            at_ms: 10,
            deadline_ms: 100,
            step,
        }
    }

    fn detach(step: Step) -> Operation {
        Operation { kind: Kind::Detach { name: "n2".to_owned() }, ..join(step) }
    }

    fn seen() -> Seen {
        Seen {
            now_ms: 50,
            held: true,
            listed: None,
            also_out: true,
            confirmed: true,
            based: true,
            backed_up: true,
            role: None,
        }
    }

    #[test]
    fn a_join_ends_joined_or_undone() {
        let late = Seen { now_ms: 100, ..seen() };
        assert_eq!(next(&join(Step::Reserved), &seen()), Next::Write(Step::Given));
        assert!(matches!(next(&join(Step::Reserved), &Seen { backed_up: false, ..seen() }), Next::Wait(_)));
        assert_eq!(next(&join(Step::Reserved), &late), Next::Close(Outcome::Undone));
        assert_eq!(next(&join(Step::Reserved), &Seen { based: false, ..seen() }), Next::Close(Outcome::Undone));
        assert_eq!(next(&join(Step::Given), &Seen { held: false, ..seen() }), Next::Give);
        assert!(matches!(next(&join(Step::Given), &seen()), Next::Wait(_)));
        let votes = Seen { listed: Some(true), ..late.clone() };
        assert_eq!(next(&join(Step::Given), &votes), Next::Close(Outcome::Joined), "late, and there");
        assert_eq!(next(&join(Step::Given), &late), Next::Undo);
        assert_eq!(next(&join(Step::Given), &Seen { listed: Some(false), ..late.clone() }), Next::Undo);
        assert!(matches!(next(&join(Step::Undoing), &Seen { listed: Some(false), ..late.clone() }), Next::Wait(_)));
        assert_eq!(next(&join(Step::Undoing), &late), Next::Close(Outcome::Undone));
        assert_eq!(next(&join(Step::Done(Outcome::Joined)), &late), Next::Nothing);
    }

    #[test]
    fn a_detach_is_done_when_the_list_says_so_and_is_never_undone_by_time() {
        let late = Seen { now_ms: 1000, listed: Some(true), ..seen() };
        assert!(matches!(next(&detach(Step::Given), &late), Next::Wait(_)));
        assert_eq!(next(&detach(Step::Given), &Seen { held: false, ..late }), Next::Give);
        assert_eq!(next(&detach(Step::Given), &seen()), Next::Close(Outcome::Detached));
        assert!(matches!(next(&detach(Step::Given), &Seen { confirmed: false, ..seen() }), Next::Wait(_)));
    }

    fn changes(step: Step, to: Role) -> Operation {
        let Kind::Join(newcomer) = join(step).kind else { unreachable!() };
        let kind = if to == Role::Client { Kind::ToClient(newcomer) } else { Kind::ToServer(newcomer) };
        Operation { kind, ..join(step) }
    }

    #[test]
    fn what_was_begun_is_taken_back_until_it_cannot_be() {
        for (operation, can) in [
            (join(Step::Reserved), true),
            (join(Step::Given), true),
            (join(Step::Undoing), false),
            (changes(Step::Given, Role::Server), true),
            (changes(Step::Reserved, Role::Client), true),
            (changes(Step::Given, Role::Client), false),
            (detach(Step::Reserved), false),
        ] {
            assert_eq!(operation.can_be_taken_back(), can, "{operation:?}");
            if can {
                let back = operation.taken_back(50);
                assert!(matches!(next(&back, &seen()), Next::Undo | Next::Close(Outcome::Undone)), "{back:?}");
                assert!(back.taken_back(60).deadline_ms == 50, "twice is once");
            }
        }
    }

    #[test]
    fn a_file_that_somebody_applied_meanwhile_is_not_replaced_and_decides() {
        let given = Operation { before: "b".to_owned(), ..join(Step::Given) };
        assert_eq!(brought(&given, "h", ["h", "h"]), None);
        assert_eq!(brought(&given, "h", ["b", "b"]), None, "it is to be given yet");
        let taken = Operation { taken: true, ..given.clone() };
        assert_eq!(brought(&taken, "h", ["b", "b"]), Some("b"), "somebody applied the one from before");
        assert_eq!(brought(&given, "h", ["p", "h"]), None, "it is not everywhere");
        assert_eq!(brought(&given, "h", ["p", "p"]), Some("p"));
        assert_eq!(brought(&join(Step::Reserved), "h", ["p", "p"]), None, "nothing of it is out");
        assert!(given.may_replace("b") && !given.may_replace("p") && !given.may_replace("h"));
        let goes_on = given.clone().rebased("P".to_owned(), true, "h".to_owned());
        assert_eq!((goes_on.step, goes_on.text.as_str()), (Step::Given, "P"));
        assert!(goes_on.may_replace("h") && goes_on.may_replace("b"), "who still has its own file gets the other one");
        let over = given.clone().rebased("P".to_owned(), false, "h".to_owned());
        assert_eq!(next(&over, &seen()), Next::Close(Outcome::Undone), "it is not declared any more");
        let back = given.turned_back("without".to_owned(), "h".to_owned());
        assert!(back.may_replace("h") && back.may_replace("b"), "who never got its file gets the one without");
        let stays = detach(Step::Given).rebased("P".to_owned(), true, "h".to_owned());
        assert_eq!(next(&stays, &Seen { listed: Some(true), ..seen() }), Next::Close(Outcome::Undone));
        assert_eq!(detach(Step::Given).rebased("P".to_owned(), false, "h".to_owned()).step, Step::Given);
    }

    #[test]
    fn a_lost_member_goes_with_the_change_that_it_holds_up() {
        let both = detach(Step::Given).and_without("n1", "neither".to_owned(), "h".to_owned());
        assert!(both.may_replace("h") && both.also == ["n1"]);
        assert_eq!(next(&both, &seen()), Next::Close(Outcome::Detached));
        assert!(matches!(next(&both, &Seen { also_out: false, ..seen() }), Next::Wait(what) if what.contains("n1")));
        assert_eq!(next(&both, &Seen { held: false, ..seen() }), Next::Give);
    }

    #[test]
    fn clients_are_on_record_and_in_no_file() {
        let Kind::Join(newcomer) = join(Step::Reserved).kind else { unreachable!() };
        let enrol = Operation { kind: Kind::Enrol(newcomer), ..join(Step::Reserved) };
        let late = Seen { now_ms: 1000, backed_up: false, ..seen() };
        assert_eq!(next(&enrol, &late), Next::Write(Step::Given), "not without the right to it");
        let enrol = Operation { step: Step::Given, ..enrol };
        assert_eq!(next(&enrol, &late), Next::Close(Outcome::Joined));
        let discharge = Operation { kind: Kind::Discharge { name: "n2".to_owned() }, ..enrol };
        assert_eq!(next(&discharge, &late), Next::Close(Outcome::Detached));
    }

    #[test]
    fn a_server_becomes_a_client_once_it_is_out_of_the_list_and_says_so() {
        let step = |seen: &Seen| next(&changes(Step::Given, Role::Client), seen);
        let late = Seen { now_ms: 100, ..seen() };
        assert_eq!(
            next(&changes(Step::Reserved, Role::Client), &late),
            Next::Close(Outcome::Undone),
            "nothing was done"
        );
        assert_eq!(step(&Seen { held: false, ..seen() }), Next::Give);
        assert!(matches!(step(&Seen { listed: Some(true), ..late.clone() }), Next::Wait(_)), "never undone by time");
        assert!(matches!(step(&Seen { role: Some(Role::Server), ..seen() }), Next::Wait(_)));
        assert!(matches!(step(&seen()), Next::Wait(_)), "it is off");
        assert_eq!(step(&Seen { role: Some(Role::Client), ..seen() }), Next::Close(Outcome::Changed));
        assert_eq!(step(&late), Next::Close(Outcome::Changed), "it comes back as a client");
    }

    #[test]
    fn a_client_becomes_a_server_or_stays_one() {
        let step = |seen: &Seen| next(&changes(Step::Given, Role::Server), seen);
        let votes = Seen { listed: Some(true), role: Some(Role::Client), ..seen() };
        assert!(matches!(step(&votes), Next::Wait(_)), "its port is still the proxy's");
        assert_eq!(step(&Seen { role: Some(Role::Server), ..votes.clone() }), Next::Close(Outcome::Changed));
        assert_eq!(step(&Seen { now_ms: 100, ..votes }), Next::Close(Outcome::Changed), "it votes");
        let late = Seen { now_ms: 100, listed: Some(false), ..seen() };
        assert_eq!(step(&late), Next::Undo);
        assert_eq!(next(&changes(Step::Undoing, Role::Server), &seen()), Next::Close(Outcome::Undone));
    }
}
