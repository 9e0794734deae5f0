//! What a node tells its peers, what it writes down for them, and what it takes over from them.
//!
//! **Invariant:** a node that gave a founding up never writes down that someone started on it; so whoever may give one up
//! proves by it that nobody ever started on it.

use quorate_etcd_formats::membership::{ClusterId, MemberId};

use crate::fork::{Forks, Report, Verdict};
use crate::ledger::{Dropped, Generation, Ledger, RolledBack, State};
use crate::spec::Spec;
use crate::start::{ListedMember, PeerAnswer, PeerFounding};

/// What the newest generation that others tell of means for a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is that of its own cluster: the node joined, or was taken over, while nobody could tell.
    Own(u64),
    /// The cluster was recovered without it, or twice, and the other one wins.
    Newer(Generation),
}

/// Decides that; `None`: nobody reports one that is newer than its own, or of the same number and won.
pub fn heed<R: Into<Report>>(ledger: &Ledger, reports: impl IntoIterator<Item = R>) -> Option<Told> {
    let reports: Vec<Report> = reports.into_iter().map(Into::into).collect();
    let mut newest: Option<Generation> = None;
    for told in reports.iter().map(|report| report.newest) {
        let ours = |of: &Generation| of.cluster.is_some() && of.cluster == ledger.cluster();
        // Of two that have the same number, the one that says more counts, and above all the one that is ours.
        let more =
            |known: &Generation| (told.number, ours(&told), told.cluster) > (known.number, ours(known), known.cluster);
        if newest.as_ref().is_none_or(more) {
            newest = Some(told);
        }
    }
    let Some(newest) = newest.filter(|newest| newest.number > ledger.generation) else {
        let own = ledger.cluster()?;
        let forks = Forks::of(ledger, &reports);
        let lost = forks.verdicts(own).find(|(_, verdict)| *verdict == Verdict::Loses);
        return lost.map(|(rival, _)| Told::Newer(Generation { number: ledger.generation, cluster: Some(rival) }));
    };
    match newest.cluster {
        Some(cluster) if ledger.cluster() == Some(cluster) => Some(Told::Own(newest.number)),
        Some(_) | None => Some(Told::Newer(newest)),
    }
}

/// What this node answers the node `asker`, which is `member`. `acknowledged`: the highest index that this member was seen at.
pub fn answer(ledger: &Ledger, asker: &str, member: Option<MemberId>, acknowledged: Option<u64>) -> PeerAnswer {
    let memory = ledger.peers.get(asker);
    let newest = ledger.newest();
    let recorded = member.and_then(|member| ledger.progress_of(member));
    PeerAnswer {
        founding: founding(ledger),
        remembers_me_started: memory.is_some_and(|memory| memory.started),
        remembers_me_in: memory.and_then(|memory| memory.cluster),
        my_tombstone: memory.is_some_and(|memory| memory.buries(member)),
        generation: newest.number,
        generation_of: newest.cluster,
        forks: Some(ledger.forks.clone()),
        acknowledged: acknowledged.max(recorded.map(|recorded| recorded.index)),
        acknowledged_term: recorded.map(|recorded| recorded.term),
        my_start: recorded.and_then(|recorded| recorded.start),
        rolled_back: recorded.and_then(|recorded| recorded.rolled_back),
        consumed: ledger.consumed.clone(),
        dropped: ledger.dropped.iter().map(|dropped| dropped.bootstrap).collect(),
        seal: ledger.seal.clone().filter(|seal| ledger.cluster() == Some(seal.cluster)),
        started: ledger.peers.iter().filter(|(_, memory)| memory.started).map(|(name, _)| name.clone()).collect(),
    }
}

/// What peers tell of a member that runs here on an older copy of its data; `None`: nothing new.
pub fn told_of_rollback<'a>(
    ledger: &Ledger,
    answers: impl IntoIterator<Item = (&'a str, &'a PeerAnswer)>,
) -> Option<(String, RolledBack)> {
    let (_, member) = ledger.ids().filter(|_| ledger.own_rollback().is_none())?;
    answers.into_iter().find_map(|(peer, answer)| {
        let unknown = answer.my_start.zip(ledger.last_start).is_some_and(|(told, own)| told.is_unknown_to(&own));
        let last = ledger.last_start.and_then(|own| own.from).unwrap_or(0);
        let seen = answer.acknowledged.unwrap_or(0);
        let found =
            answer.rolled_back.or_else(|| unknown.then_some(RolledBack { member, seen, last, by_store: false }));
        found.map(|found| (peer.to_owned(), found))
    })
}

/// How far this node has come, for others.
pub fn founding(ledger: &Ledger) -> PeerFounding {
    match &ledger.state {
        State::Empty => PeerFounding::Nothing,
        State::Promised(promise) | State::Inited(promise) => PeerFounding::Promised(promise.clone()),
        State::Started(identity) => PeerFounding::Founded(identity.cluster),
        State::PendingAdd(add) => PeerFounding::Founded(add.cluster),
        State::Tombstone(_) => PeerFounding::Removed,
    }
}

/// Writes down that the peer `name` is about to start as `member` of `cluster`, or says why not. Whoever has promised
/// nothing writes it down too: it may have lost what it knew, and is remembered by others. `declaration`: the hash of what the peer
/// bootstraps; none from agents of earlier releases.
pub fn record_started(
    ledger: &Ledger,
    name: &str,
    cluster: ClusterId,
    member: MemberId,
    declaration: Option<&str>,
) -> Result<Ledger, String> {
    let same = |dropped: &&Dropped| {
        dropped.cluster == cluster || (dropped.declaration.is_some() && dropped.declaration.as_deref() == declaration)
    };
    if let Some(dropped) = ledger.dropped.iter().find(same) {
        return Err(format!("it gave founding {} up", dropped.bootstrap));
    }
    let ours = match &ledger.state {
        // What it wrote down for one cluster binds it until it has promised that one.
        State::Empty => ledger.bound().find(|bound| *bound != cluster).unwrap_or(cluster),
        State::Promised(promise) | State::Inited(promise) if !promise.is_sealed() => {
            return Err("it has not received the nonce of every member yet".to_owned());
        }
        State::Promised(promise) | State::Inited(promise) => promise.cluster,
        State::Started(identity) => identity.cluster,
        State::PendingAdd(add) => add.cluster,
        State::Tombstone(_) => return Err("it was removed for good".to_owned()),
    };
    if ours != cluster {
        return Err(format!("it belongs to cluster `{ours}`, and not to `{cluster}`"));
    }
    let mut next = ledger.clone();
    let memory = next.peers.entry(name.to_owned()).or_default();
    (memory.started, memory.member, memory.cluster) = (true, Some(member), Some(cluster));
    Ok(next)
}

/// Takes over what a confirmed list and the peers know, so that the memory of who started outlives those who saw it. To be
/// written down before this node is promoted, and whenever the list changes.
#[must_use]
pub fn remember<'a>(
    ledger: &Ledger,
    me: &str,
    members: &[ListedMember],
    answers: impl IntoIterator<Item = &'a PeerAnswer>,
) -> Ledger {
    let mut next = ledger.clone();
    for member in members.iter().filter(|member| member.started && member.name != me && !member.name.is_empty()) {
        let memory = next.peers.entry(member.name.clone()).or_default();
        (memory.started, memory.member) = (true, Some(member.id));
    }
    for answer in answers {
        for name in answer.started.iter().filter(|name| *name != me) {
            next.peers.entry(name.clone()).or_default().started = true;
        }
        next.consumed.extend(answer.consumed.iter().filter(|id| !ledger.consumed.contains(id)));
    }
    next.consumed.sort_unstable();
    next.consumed.dedup();
    next
}

/// Writes down who was removed for good: a member that ran, that a confirmed list does not hold any more, and that the file does
/// not declare. Whoever is declared, or listed, is not buried any longer.
#[must_use]
pub fn bury(ledger: &Ledger, spec: &Spec, members: &[ListedMember]) -> Ledger {
    let mut next = ledger.clone();
    for (name, memory) in &mut next.peers {
        let declared = spec.member(name);
        let same = |member: &ListedMember| member.name == *name || (Some(member.id) == memory.member);
        memory.tombstone = memory.started && declared.is_none() && !members.iter().any(same);
    }
    next
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ledger::{Identity, Origin, Promise};

    const C: ClusterId = ClusterId(7);

    fn promise(bootstrap: u64, cluster: ClusterId) -> Promise {
        let members = vec!["n1".to_owned(), "n2".to_owned()];
        Promise {
            bootstrap,
            declaration: "d".to_owned(),
            cluster,
            member: MemberId(1),
            members,
            over: false,
            nonce: None,
            nonces: BTreeMap::new(),
        }
    }

    #[test]
    fn a_newer_generation_is_that_of_the_own_cluster_or_one_without_this_node() {
        let of = |number, cluster: Option<u64>| Generation { number, cluster: cluster.map(ClusterId) };
        let identity = Identity { cluster: C, member: MemberId(1), origin: Origin::Joined };
        let ledger = Ledger { generation: 1, ..Ledger::default().with(State::Started(identity)) };
        assert_eq!(heed(&ledger, [of(0, Some(9)), of(1, Some(9)), of(1, None)]), None);
        assert_eq!(heed(&ledger, [of(2, None), of(2, Some(7))]), Some(Told::Own(2)));
        // Two recoveries made the same generation: the lower id wins, once for all.
        let fork = of(1, Some(3));
        assert_eq!(heed(&ledger, [of(1, Some(9)), fork, of(1, Some(5))]), Some(Told::Newer(fork)));
        let lost = ledger.outdated_by(fork);
        assert!(lost.is_outdated() && lost.newest() == fork && !lost.reset().is_outdated());
        assert_eq!(heed(&ledger, [fork, of(2, Some(9))]), Some(Told::Newer(of(2, Some(9)))), "a later one counts more");
        let restored = Ledger { was: vec![ClusterId(3)], ..ledger.clone() };
        assert_eq!(heed(&restored, [fork]), None, "what it was restored from is its own past");
        assert_eq!(heed(&Ledger { generation: 0, ..ledger.clone() }, [of(0, Some(3))]), None);
        assert_eq!(
            heed(&ledger, [of(2, Some(7)), of(2, Some(9))]),
            Some(Told::Own(2)),
            "one of its own cluster says so"
        );
        assert_eq!(heed(&ledger, [of(2, Some(7)), of(3, None)]), Some(Told::Newer(of(3, None))), "a later one counts");
        assert_eq!(heed(&ledger, [of(2, None), of(2, Some(9))]), Some(Told::Newer(of(2, Some(9)))), "it says more");
        // Who belongs to none is not taken for one of it.
        assert_eq!(heed(&Ledger::default(), [of(1, None)]), Some(Told::Newer(of(1, None))));
    }

    /// Recoveries on all sides of partitions, and nodes that hear of each other in any order.
    #[test]
    fn of_any_number_of_forks_exactly_the_lowest_id_stays() {
        let mut seed = 0x5eed_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..2_000 {
            let clusters: Vec<u64> = (0..2 + random(3)).map(|_| 1 + random(9)).collect();
            let node = |cluster: u64| {
                let identity = Identity { cluster: ClusterId(cluster), member: MemberId(1), origin: Origin::Restored };
                Ledger { generation: 1, ..Ledger::default().with(State::Started(identity)) }
            };
            let mut nodes: Vec<Ledger> =
                (0..6).map(|_| node(clusters[random(clusters.len() as u64) as usize])).collect();
            for _ in 0..200 {
                let (here, there) = (random(6) as usize, random(6) as usize);
                let told = nodes[there].newest();
                match heed(&nodes[here], [told]) {
                    Some(Told::Newer(newer)) => nodes[here] = nodes[here].outdated_by(newer),
                    Some(Told::Own(number)) => panic!("round {round}: generation {number} is taken over"),
                    None => {}
                }
            }
            let lowest = nodes.iter().filter_map(Ledger::cluster).min();
            for node in &nodes {
                assert_eq!(node.is_outdated(), node.cluster() != lowest, "round {round}: {nodes:?}");
            }
        }
    }

    #[test]
    fn a_start_is_written_down_by_whoever_does_not_know_better() {
        let empty = Ledger::default();
        let promised = empty.with(State::Promised(promise(1, C)));
        for ledger in [&empty, &promised] {
            let next = record_started(ledger, "n2", C, MemberId(2), None).unwrap();
            assert!(
                answer(&next, "n2", None, None).remembers_me_started
                    && !answer(&next, "n3", None, None).remembers_me_started
            );
            assert_eq!(record_started(&next, "n2", C, MemberId(2), None).unwrap(), next);
        }
        let other = record_started(&promised, "n2", ClusterId(8), MemberId(2), None).unwrap_err();
        assert_eq!(other, "it belongs to cluster `7`, and not to `8`");
    }

    #[test]
    fn what_was_given_up_is_not_written_down() {
        let dropped = Ledger::default().with(State::Promised(promise(1, C))).with(State::Empty);
        assert_eq!(
            dropped.dropped,
            [Dropped { bootstrap: 1, cluster: C, members: promise(1, C).members, declaration: None }]
        );
        assert_eq!(record_started(&dropped, "n2", C, MemberId(2), None).unwrap_err(), "it gave founding 1 up");
        assert_eq!(
            (answer(&dropped, "n2", None, None).dropped, answer(&dropped, "n2", None, None).consumed),
            (vec![1], vec![1])
        );
    }

    #[test]
    fn who_joins_remembers_what_the_others_know() {
        let identity = Identity { cluster: C, member: MemberId(1), origin: Origin::Founded };
        let mut old = Ledger { consumed: vec![1], ..Ledger::default() }.with(State::Started(identity));
        old = record_started(&old, "n2", C, MemberId(2), None).unwrap();
        let new = remember(&Ledger::default(), "n3", &[], [&answer(&old, "n3", None, None)]);
        assert!(new.peers["n2"].started && new.consumed == [1]);
        let new = remember(&Ledger::default(), "n2", &[], [&answer(&old, "n2", None, None)]);
        assert!(new.peers.is_empty());
    }

    #[test]
    fn who_is_out_of_the_list_and_of_the_file_is_buried_until_it_is_declared_again() {
        let spec = |names: &[&str]| {
            let members = names.iter().map(|name| format!("  - {{name: {name}, address: 10.0.0.{}}}\n", &name[1..]));
            let text = format!("token: t\nplaintext: true\nmembers:\n{}", members.collect::<String>());
            Spec::parse(text.as_bytes(), "c").map_err(|mistakes| mistakes.render()).unwrap().0
        };
        let identity = Identity { cluster: C, member: MemberId(1), origin: Origin::Founded };
        let ledger = Ledger::default().with(State::Started(identity));
        let ledger = record_started(&ledger, "n2", C, MemberId(2), None).unwrap();
        let buried = bury(&ledger, &spec(&["n1"]), &[]);
        let asked = |member| answer(&buried, "n2", member, None).my_tombstone;
        assert!(asked(None) && asked(Some(MemberId(2))) && !asked(Some(MemberId(3))), "{buried:?}");
        // Whose id is not known is not taken for anyone who has one.
        let mut unknown = buried.clone();
        unknown.peers.entry("n2".to_owned()).or_default().member = None;
        assert!(!answer(&unknown, "n2", Some(MemberId(2)), None).my_tombstone);
        assert_eq!(bury(&buried, &spec(&["n1", "n2"]), &[]), ledger);
    }
}
