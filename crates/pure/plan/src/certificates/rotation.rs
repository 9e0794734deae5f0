//! A rotation of authorities on paper: its phases, what a node lacks in one, whom everybody waits for, and whether a node may take
//! an order to trust others.
//!
//! **Rule:** a phase asks for all that the phases before it asked for. Nobody gets certificates of an authority while somebody does
//! not trust it yet, and nobody drops one while somebody may show its certificates; whoever does not answer may lack anything. A
//! phase ends when nobody lacks anything.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Authority, Role};

/// How far a rotation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RotationPhase {
    /// Every node comes to trust the old authority and the new one.
    Trust,
    /// Every node gets certificates of the new one.
    Issue,
    /// Every node comes to trust the new one alone.
    Drop,
    /// It is over.
    Done,
}

impl RotationPhase {
    /// In one word.
    pub fn word(self) -> &'static str {
        match self {
            RotationPhase::Trust => "trust",
            RotationPhase::Issue => "issue",
            RotationPhase::Drop => "drop",
            RotationPhase::Done => "done",
        }
    }

    /// The one after it.
    pub fn next(self) -> RotationPhase {
        match self {
            RotationPhase::Trust => RotationPhase::Issue,
            RotationPhase::Issue => RotationPhase::Drop,
            RotationPhase::Drop | RotationPhase::Done => RotationPhase::Done,
        }
    }

    /// The number of orders in the next phase, where this one's is `number`: only a phase with an order of its own has a number of
    /// its own.
    pub fn next_number(self, number: u64) -> u64 {
        number + u64::from(self == RotationPhase::Issue)
    }
}

/// What a node shows of itself, authorities by any text that names them.
#[derive(Debug, Clone, Copy)]
pub struct TrustShown<'a> {
    /// The authorities that it trusts, by kind, sorted.
    pub trusts: &'a BTreeMap<String, Vec<String>>,
    /// Who signed each of its certificates, by role; none: nobody whom it trusts.
    pub signed_by: &'a BTreeMap<String, Option<String>>,
    /// The number of the last order that it recorded; 0: none. It passes only a recorded order on to nodes that come later.
    pub number: u64,
    /// Whether its etcd was started with what it trusts now; none: it does not run, and reads the files when it starts.
    pub etcd_current: Option<bool>,
}

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// An order to trust others.
    Order,
    /// The order of the first phase, after which it came: the key that signed it signs no more, so that one is kept, and other agents
    /// hand it on as well.
    Hear,
    /// Its etcd has to be started again, in its turn.
    Restart,
    /// Certificates of the new authorities.
    Certificates,
}

/// What a node lacks, and the phase that asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// The phase that asks for it: that of the rotation, or one before it for who came later.
    pub phase: RotationPhase,
    /// What it is.
    pub need: Need,
}

impl Lack {
    /// In words, for a list of nodes.
    pub fn text(self) -> &'static str {
        match self.need {
            Need::Order => "it trusts others",
            Need::Hear => "it does not trust the new authorities yet",
            Need::Restart => "its etcd runs with earlier trust, until its turn to be restarted",
            Need::Certificates => "it shows earlier certificates",
        }
    }
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It did not answer, or could not do what it was told: for this reason.
    Unknown(String),
    /// It has yet to come to this.
    Lacks(Lack),
    /// It lacks nothing.
    Done,
}

impl Standing {
    /// The earliest phase that may still ask something of it.
    pub fn phase(&self) -> RotationPhase {
        match self {
            Standing::Unknown(_) => RotationPhase::Trust,
            Standing::Lacks(lack) => lack.phase,
            Standing::Done => RotationPhase::Done,
        }
    }

    /// What it is told now, where `all` of them stand at this phase; none: it waits for others, for its turn, or is done.
    pub fn told_at(&self, all: RotationPhase) -> Option<Need> {
        match self {
            Standing::Lacks(Lack { phase, need: need @ (Need::Order | Need::Hear | Need::Certificates) })
                if *phase == all =>
            {
                Some(*need)
            }
            Standing::Unknown(_) | Standing::Lacks(_) | Standing::Done => None,
        }
    }
}

/// The phase at which all of them stand together: that of the last. [`RotationPhase::Done`]: the phase of the rotation is over.
/// `strange`: there are, or may be, members that the file does not declare, who can neither be asked nor told, and may lack anything.
pub fn phase_of_all<'a>(nodes: impl IntoIterator<Item = &'a Standing>, strange: bool) -> RotationPhase {
    let least = nodes.into_iter().map(Standing::phase).min().unwrap_or(RotationPhase::Done);
    if strange { RotationPhase::Trust } else { least }
}

/// Whom a node knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKnows {
    /// Whom its cluster file declares.
    pub declares: Vec<String>,
    /// The members of the cluster, by name; `None`: it has no etcd of its own.
    pub members: Option<Vec<String>>,
    /// A quorum confirms them now; else it is what the node remembers, and does not count.
    pub confirmed: bool,
}

/// Nodes that belong to the cluster and are not declared by the file of whoever asks: members, and those whom the file of a node
/// declares. `None`: no node has a list that a quorum confirms, so the members are unknown. What a node remembers of them does not
/// count: some have left since, and a voter that has joined since is missing from it.
pub fn strangers(told: &[NodeKnows], is_declared: impl Fn(&str) -> bool) -> Option<BTreeSet<&str>> {
    let confirmed: Vec<&Vec<String>> =
        told.iter().filter(|told| told.confirmed).filter_map(|told| told.members.as_ref()).collect();
    let has_members = told.iter().any(|told| told.members.is_some());
    if has_members && confirmed.iter().all(|names| names.is_empty()) {
        return None;
    }
    let names = confirmed.into_iter().chain(told.iter().map(|told| &told.declares)).flatten().map(String::as_str);
    // One without a name has never started, and shows nothing to anybody.
    Some(names.filter(|name| !name.is_empty() && !is_declared(name)).collect())
}

/// What every node is to come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goal {
    phase: RotationPhase,
    /// The number of the phase's order.
    number: u64,
    kinds: Vec<Aim>,
}

/// The same for authorities of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Aim {
    authority: Authority,
    issuing: String,
    /// All of them, sorted.
    trusted: Vec<String>,
}

impl Goal {
    /// Of a phase and the number of its order, with those that are to be trusted in it, the issuing one first.
    pub fn of(phase: RotationPhase, number: u64, trusted: impl IntoIterator<Item = (Authority, Vec<String>)>) -> Goal {
        let aim = |(authority, mut trusted): (Authority, Vec<String>)| {
            let issuing = trusted.first().cloned()?;
            trusted.sort_unstable();
            Some(Aim { authority, issuing, trusted })
        };
        Goal { phase, number, kinds: trusted.into_iter().filter_map(aim).collect() }
    }

    /// What a node lacks first.
    pub fn lacks(&self, shown: &TrustShown<'_>) -> Option<Lack> {
        let lack = |phase, need| Some(Lack { phase, need });
        let stale = shown.etcd_current == Some(false);
        match self.phase {
            RotationPhase::Trust if !self.is_ordered(shown) => lack(RotationPhase::Trust, Need::Order),
            RotationPhase::Trust if stale => lack(RotationPhase::Trust, Need::Restart),
            // Whoever came after that phase may not know the new one.
            RotationPhase::Issue | RotationPhase::Drop if !self.is_known_to(shown) => {
                lack(RotationPhase::Trust, Need::Hear)
            }
            RotationPhase::Issue if stale => lack(RotationPhase::Trust, Need::Restart),
            RotationPhase::Issue | RotationPhase::Drop if !self.is_shown_by(shown) => {
                lack(RotationPhase::Issue, Need::Certificates)
            }
            RotationPhase::Drop if !self.is_ordered(shown) => lack(RotationPhase::Drop, Need::Order),
            RotationPhase::Drop if stale => lack(RotationPhase::Drop, Need::Restart),
            RotationPhase::Trust | RotationPhase::Issue | RotationPhase::Drop | RotationPhase::Done => None,
        }
    }

    /// Whether a node trusts what the order says and has recorded the order. One that crashed between the two is told again: without
    /// the record it could not pass the order on, and a node that was prepared before it would trust the old authority for ever.
    fn is_ordered(&self, shown: &TrustShown<'_>) -> bool {
        shown.number >= self.number && self.is_trusted_by(shown)
    }

    fn is_trusted_by(&self, shown: &TrustShown<'_>) -> bool {
        self.kinds.iter().all(|aim| shown.trusts.get(aim.authority.word()) == Some(&aim.trusted))
    }

    fn is_known_to(&self, shown: &TrustShown<'_>) -> bool {
        let trusts = |aim: &Aim| shown.trusts.get(aim.authority.word()).is_some_and(|all| all.contains(&aim.issuing));
        self.kinds.iter().all(trusts)
    }

    fn is_shown_by(&self, shown: &TrustShown<'_>) -> bool {
        let by = |role: Role| shown.signed_by.get(role.word()).and_then(Option::as_ref);
        let roles = |aim: &Aim| {
            let mut of_it = Role::ALL.into_iter().filter(|role| role.authority() == aim.authority);
            of_it.all(|role| by(role) == Some(&aim.issuing))
        };
        self.kinds.iter().all(roles)
    }
}

/// The order that a node carried out last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastOrder {
    /// Its number.
    pub number: u64,
    /// Whether it says the same as the one that is brought now.
    pub same: bool,
}

/// Why a node does not take an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderRefused {
    /// It would bring back what was ordered before.
    Older(u64),
    /// No authority that the node trusts has signed it.
    Unsigned,
    /// The node's own certificate of this role would not be trusted.
    LocksOut(Role),
}

/// Whether an order with this number may come after the last one.
pub fn may_follow(number: u64, last: Option<LastOrder>) -> Result<(), OrderRefused> {
    match last {
        Some(last) if last.number > number || (last.number == number && !last.same) => {
            Err(OrderRefused::Older(last.number))
        }
        Some(_) | None => Ok(()),
    }
}

/// Whether a node may trust what an order says of one kind. `signed`: by an authority that the node trusts now; `own`: for each
/// certificate that it has of that kind, whether it would be trusted.
pub fn may_trust(signed: bool, own: impl IntoIterator<Item = (Role, bool)>) -> Result<(), OrderRefused> {
    if !signed {
        return Err(OrderRefused::Unsigned);
    }
    // Nobody may lock a node out of its own cluster.
    match own.into_iter().find(|(_, trusted)| !trusted) {
        Some((role, _)) => Err(OrderRefused::LocksOut(role)),
        None => Ok(()),
    }
}

/// What the other agents of a cluster answered one that was handed an order.
#[derive(Debug, Clone, Copy)]
pub struct Others<'a> {
    /// Who signed the certificates of each of them, by role; none: it did not answer.
    pub signed_by: &'a [Option<&'a BTreeMap<String, Option<String>>>],
    /// There are, or may be, members that are not among them.
    pub strange: bool,
}

/// Whether an order that another agent hands on parts this node from nobody: it takes away no authority, or every other node is known
/// to show certificates of those that are left. The command that gave the order knew that of its nodes; one may have come since.
/// `before` and `after`: what is trusted, by kind.
pub fn parts_nobody(
    before: &BTreeMap<String, Vec<String>>,
    after: &BTreeMap<String, Vec<String>>,
    others: Others<'_>,
) -> bool {
    let kept = |kind: &String, trusted: &Vec<String>| {
        let before = before.get(kind).map_or(&[][..], Vec::as_slice);
        if before.iter().all(|one| trusted.contains(one)) {
            return true;
        }
        let roles = || Role::ALL.into_iter().filter(|role| role.authority().word() == kind);
        let good = |by: &BTreeMap<String, Option<String>>| {
            roles().all(|role| by.get(role.word()).and_then(Option::as_ref).is_some_and(|by| trusted.contains(by)))
        };
        !others.strange && others.signed_by.iter().all(|by| by.is_some_and(good))
    };
    after.iter().all(|(kind, trusted)| kept(kind, trusted))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that trusts these, and whose certificates come from `by`.
    fn lacks(phase: RotationPhase, trusted: &[&str], trusts: &[&str], by: &str, current: Option<bool>) -> Option<Lack> {
        lacks_with(phase, trusted, trusts, by, (current, 1))
    }

    /// The same for one that recorded the order with this number; the phase has order 1.
    fn lacks_with(
        phase: RotationPhase,
        trusted: &[&str],
        trusts: &[&str],
        by: &str,
        (etcd_current, number): (Option<bool>, u64),
    ) -> Option<Lack> {
        let text = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
        let goal = Goal::of(phase, 1, Authority::ALL.map(|authority| (authority, text(trusted))));
        let trusts = Authority::ALL.map(|authority| (authority.word().to_owned(), text(trusts))).into();
        let signed_by = Role::ALL.map(|role| (role.word().to_owned(), Some(by.to_owned()))).into();
        goal.lacks(&TrustShown { trusts: &trusts, signed_by: &signed_by, number, etcd_current })
    }

    #[test]
    fn a_phase_asks_for_what_the_phases_before_asked_for() {
        use RotationPhase::{Drop, Issue, Trust};
        let lack = |phase, need| Some(Lack { phase, need });
        let of = |phase| {
            move |trusts: &[&str], by: &str, current| {
                let trusted: &[&str] = match phase {
                    Trust => &["a", "b"],
                    Issue => &["b", "a"],
                    Drop | RotationPhase::Done => &["b"],
                };
                lacks(phase, trusted, trusts, by, current)
            }
        };
        let trust = of(Trust);
        assert_eq!(trust(&["a"], "a", Some(true)), lack(Trust, Need::Order));
        assert_eq!(trust(&["a", "b"], "a", Some(false)), lack(Trust, Need::Restart));
        assert_eq!(trust(&["a", "b"], "a", None), None, "one that does not run reads the files when it starts");
        let issue = of(Issue);
        assert_eq!(issue(&["a"], "a", Some(true)), lack(Trust, Need::Hear), "it came after the first phase");
        assert_eq!(issue(&["a", "b"], "a", Some(false)), lack(Trust, Need::Restart));
        assert_eq!(issue(&["a", "b"], "a", Some(true)), lack(Issue, Need::Certificates));
        assert_eq!(issue(&["b"], "b", Some(true)), None, "it was made with the new one alone");
        let drop = of(Drop);
        assert_eq!(drop(&["a"], "a", None), lack(Trust, Need::Hear));
        assert_eq!(drop(&["a", "b"], "a", Some(true)), lack(Issue, Need::Certificates));
        assert_eq!(drop(&["a", "b"], "b", Some(true)), lack(Drop, Need::Order));
        assert_eq!(drop(&["b"], "b", Some(false)), lack(Drop, Need::Restart));
        assert_eq!(drop(&["b"], "b", Some(true)), None);
        assert_eq!(of(RotationPhase::Done)(&["a"], "a", None), None);
    }

    #[test]
    fn orders_a_node_again_that_crashed_before_it_recorded_the_order() {
        let order = |phase| Some(Lack { phase, need: Need::Order });
        let (trust, drop) = (RotationPhase::Trust, RotationPhase::Drop);
        assert_eq!(lacks_with(trust, &["a", "b"], &["a", "b"], "a", (Some(true), 0)), order(trust));
        assert_eq!(lacks_with(drop, &["b"], &["b"], "b", (Some(true), 0)), order(drop));
        assert_eq!(lacks_with(drop, &["b"], &["b"], "b", (Some(true), 2)), None, "it recorded a later one");
        assert_eq!(lacks_with(RotationPhase::Issue, &["b", "a"], &["b"], "b", (None, 0)), None, "this phase has none");
    }

    #[test]
    fn nobody_goes_ahead_of_who_is_last_or_silent_or_a_stranger() {
        let certificates = Standing::Lacks(Lack { phase: RotationPhase::Issue, need: Need::Certificates });
        let order = Standing::Lacks(Lack { phase: RotationPhase::Trust, need: Need::Order });
        let silent = Standing::Unknown("no answer".to_owned());
        assert_eq!(phase_of_all([&certificates, &Standing::Done], false), RotationPhase::Issue);
        assert_eq!(certificates.told_at(RotationPhase::Issue), Some(Need::Certificates));
        for last in [&order, &silent] {
            assert_eq!(phase_of_all([&certificates, last], false), RotationPhase::Trust);
        }
        assert_eq!(certificates.told_at(RotationPhase::Trust), None);
        assert_eq!(order.told_at(RotationPhase::Trust), Some(Need::Order));
        assert_eq!(phase_of_all([&Standing::Done], true), RotationPhase::Trust);
        assert_eq!(phase_of_all([&Standing::Done], false), RotationPhase::Done);
    }

    #[test]
    fn who_is_not_declared_is_known_from_files_and_from_lists_that_a_quorum_confirms() {
        let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let knows = |declares: &[&str], members: &[&str], confirmed| NodeKnows {
            declares: text(declares),
            members: Some(text(members)),
            confirmed,
        };
        let declared = |name: &str| name == "n1" || name == "n2";
        let (now, before) = (knows(&["n1"], &["n1", "n3", ""], true), knows(&["n1"], &["n1", "n4"], false));
        assert_eq!(strangers(&[now, before.clone()], declared), Some(["n3"].into()));
        assert_eq!(strangers(&[before, knows(&[], &[], false)], declared), None, "remembered lists may lack a voter");
        assert_eq!(strangers(&[knows(&["n1", "n5"], &["n1", "n2"], true)], declared), Some(["n5"].into()));
        assert_eq!(strangers(&[knows(&["n2"], &["n1", "n2"], true)], declared), Some([].into()));
        assert_eq!(strangers(&[knows(&["n1"], &[], false)], declared), None, "unknown is not empty");
        let elsewhere = NodeKnows { members: None, ..knows(&["n1"], &[], false) };
        assert_eq!(strangers(&[elsewhere], declared), Some([].into()), "nobody has an etcd of its own");
    }

    #[test]
    fn an_order_is_taken_once_signed_and_only_where_nobody_is_locked_out() {
        let last = |number, same| Some(LastOrder { number, same });
        assert_eq!(may_follow(2, None), Ok(()));
        assert_eq!(may_follow(2, last(1, false)), Ok(()));
        assert_eq!(may_follow(2, last(2, true)), Ok(()), "again");
        assert_eq!(may_follow(2, last(2, false)), Err(OrderRefused::Older(2)));
        assert_eq!(may_follow(2, last(3, true)), Err(OrderRefused::Older(3)));
        assert_eq!(may_trust(false, []), Err(OrderRefused::Unsigned));
        assert_eq!(
            may_trust(true, [(Role::Client, true), (Role::Admin, false)]),
            Err(OrderRefused::LocksOut(Role::Admin))
        );
        assert_eq!(may_trust(true, [(Role::Peer, true)]), Ok(()));
    }

    #[test]
    fn an_order_that_is_handed_on_takes_nothing_away_that_somebody_shows() {
        let trusts = |all: &[&str]| {
            let all: Vec<String> = all.iter().map(|one| (*one).to_owned()).collect();
            BTreeMap::from([(Authority::Peer.word().to_owned(), all)])
        };
        let shows = |by: Option<&str>| BTreeMap::from([(Role::Peer.word().to_owned(), by.map(str::to_owned))]);
        let parts = |after: &[&str], others: &[Option<&BTreeMap<String, Option<String>>>], strange| {
            !parts_nobody(&trusts(&["a", "b"]), &trusts(after), Others { signed_by: others, strange })
        };
        let (old, new, unknown) = (shows(Some("a")), shows(Some("b")), shows(None));
        assert!(!parts(&["b"], &[], false), "nobody else is there");
        assert!(!parts(&["b"], &[Some(&new), Some(&new)], false));
        assert!(parts(&["b"], &[Some(&new), Some(&old)], false), "one came with an old certificate");
        assert!(parts(&["b"], &[Some(&new), None], false), "one is silent");
        assert!(parts(&["b"], &[Some(&unknown)], false));
        assert!(parts(&["b"], &[Some(&new)], true), "there may be others");
        assert!(!parts(&["a", "b", "c"], &[None], true), "what takes nothing away parts nobody");
    }
}
