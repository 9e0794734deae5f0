//! What an initialization leads to: start on what is there, restore, or refuse. On paper.
//!
//! **Invariant:** data is replaced only by what a store was seen to hold, and nothing is founded where something may have
//! been. Unknown is not empty.

/// What is in the data dir.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Data {
    /// Nothing.
    Absent,
    /// It is whole. The newest revision that it can lead to once its log is replayed, where that is known.
    Valid { reach: Option<u64> },
    /// It is damaged, in words.
    Broken(String),
    /// It cannot be looked at, in words.
    Unknown(String),
}

/// What is in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreSeen {
    /// There is none.
    NotConfigured,
    /// It does not answer, in words.
    Unreachable(String),
    /// It was listed, and holds no backup.
    Empty,
    /// It leads to this revision.
    Reaches(u64),
}

/// What this member is to the running cluster. All but `Silent` were confirmed by its members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClusterSeen {
    /// Nobody answers, or nobody was asked.
    Silent,
    /// It runs, and does not know this member.
    WithoutUs,
    /// It runs, and this member was added to it and has not started yet.
    Awaits,
    /// It runs, and this member is part of it.
    Lists { id: u64, client_urls: Vec<String> },
}

/// What is known when the decision is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) data: Data,
    pub(super) store: StoreSeen,
    /// Members that the configuration declares.
    pub(super) members: usize,
    /// What the cluster says.
    pub(super) cluster: ClusterSeen,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Start on what is there, or found what is not.
    Start(String),
    /// Replace what is there by what the store holds.
    Restore(String),
    /// Come into the running cluster without data: take the former self out first, set aside what is there, be added as
    /// a learner unless that was done already.
    Join { former: Option<(u64, Vec<String>)>, add: bool, why: String },
    /// Do nothing; say why, and what helps.
    Refuse(String, &'static str),
}

/// Decides.
pub(super) fn decide(seen: &Seen) -> Step {
    match &seen.data {
        Data::Unknown(why) => Step::Refuse(
            format!("the data cannot be looked at: {why}"),
            "nothing was touched; it is tried again when the wrapper asks again",
        ),
        Data::Valid { reach } => on_good_data(*reach, seen),
        Data::Absent | Data::Broken(_) if seen.members > 1 => one_of_several(seen),
        Data::Absent => without_data(&seen.store),
        Data::Broken(why) => on_broken_data(why, &seen.store),
    }
}

fn on_good_data(reach: Option<u64>, seen: &Seen) -> Step {
    let good = "the data is valid".to_owned();
    match (&seen.store, reach) {
        // Of several members, the others bring what is missing.
        _ if seen.members > 1 => Step::Start(good),
        (StoreSeen::Reaches(stored), Some(reach)) if *stored > reach => Step::Restore(format!(
            "the data leads to revision {reach} at most, and revision {stored} was backed up: it is an older copy"
        )),
        (StoreSeen::Unreachable(why), _) => Step::Start(format!("{good}; the store was not compared with it: {why}")),
        (StoreSeen::NotConfigured | StoreSeen::Empty | StoreSeen::Reaches(_), _) => Step::Start(good),
    }
}

fn without_data(store: &StoreSeen) -> Step {
    match store {
        StoreSeen::NotConfigured | StoreSeen::Empty => {
            Step::Start("there is neither data nor a backup: etcd founds the cluster".to_owned())
        }
        StoreSeen::Reaches(stored) => Step::Restore(format!("there is no data, and a backup up to revision {stored}")),
        StoreSeen::Unreachable(why) => Step::Refuse(
            format!("there is no data, and whether there is a backup cannot be seen: {why}"),
            "a new cluster is founded only when the store is known to be empty",
        ),
    }
}

fn on_broken_data(why: &str, store: &StoreSeen) -> Step {
    match store {
        StoreSeen::Reaches(stored) => {
            Step::Restore(format!("the data is damaged ({why}), and revision {stored} was backed up"))
        }
        StoreSeen::NotConfigured | StoreSeen::Empty => Step::Refuse(
            format!("the data is damaged, and there is no backup: {why}"),
            "every byte is kept; to go on without it, move the data dir away yourself",
        ),
        StoreSeen::Unreachable(silent) => Step::Refuse(
            format!("the data is damaged ({why}), and the store does not answer: {silent}"),
            "every byte is kept; it is restored when the store answers",
        ),
    }
}

fn one_of_several(seen: &Seen) -> Step {
    let what = match &seen.data {
        Data::Broken(why) => format!("the data of one of {} members is damaged: {why}", seen.members),
        Data::Absent | Data::Valid { .. } | Data::Unknown(_) => {
            format!("one of {} members has no data", seen.members)
        }
    };
    match &seen.cluster {
        ClusterSeen::Silent => {}
        ClusterSeen::WithoutUs => {
            let why = format!("{what}, and the cluster runs without it: it joins as a learner");
            return Step::Join { former: None, add: true, why };
        }
        ClusterSeen::Awaits => {
            return Step::Join { former: None, add: false, why: format!("{what}, and the cluster awaits it") };
        }
        ClusterSeen::Lists { id, client_urls } => {
            let why = format!("{what}, and the cluster runs: it is replaced by a learner");
            return Step::Join { former: Some((*id, client_urls.clone())), add: true, why };
        }
    }
    match (&seen.data, &seen.store) {
        (Data::Absent, StoreSeen::Empty) => {
            Step::Start(format!("{what}, nobody runs the cluster and the store is empty: the members found it"))
        }
        (Data::Absent, StoreSeen::NotConfigured) => Step::Refuse(
            format!("{what}, and without a store nobody can tell a new cluster from a lost disk"),
            "make the members' data dirs with `quorate data init`, or give a store",
        ),
        _ => Step::Refuse(what, "restore every member from one restore point: `quorate backup restore`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(data: Data, store: StoreSeen, members: usize, cluster: ClusterSeen) -> &'static str {
        match decide(&Seen { data, store, members, cluster }) {
            Step::Start(_) => "start",
            Step::Restore(_) => "restore",
            Step::Join { former: None, add: true, .. } => "join",
            Step::Join { former: None, add: false, .. } => "go on joining",
            Step::Join { former: Some(_), .. } => "replace",
            Step::Refuse(..) => "refuse",
        }
    }

    #[test]
    fn every_situation_of_one_member_has_its_answer() {
        use StoreSeen::{Empty, NotConfigured, Reaches};
        let away = || StoreSeen::Unreachable("x".to_owned());
        let (broken, unknown) = (|| Data::Broken("x".to_owned()), || Data::Unknown("x".to_owned()));
        let valid = |reach| Data::Valid { reach };
        for (data, store, expected) in [
            (Data::Absent, NotConfigured, "start"),
            (Data::Absent, Empty, "start"),
            (Data::Absent, Reaches(9), "restore"),
            (Data::Absent, away(), "refuse"),
            (valid(Some(9)), NotConfigured, "start"),
            (valid(Some(9)), Empty, "start"),
            (valid(Some(9)), Reaches(9), "start"),
            (valid(Some(8)), Reaches(9), "restore"),
            (valid(None), Reaches(9), "start"),
            (valid(Some(9)), away(), "start"),
            (broken(), NotConfigured, "refuse"),
            (broken(), Empty, "refuse"),
            (broken(), Reaches(9), "restore"),
            (broken(), away(), "refuse"),
            (unknown(), NotConfigured, "refuse"),
            (unknown(), Reaches(9), "refuse"),
        ] {
            assert_eq!(step(data.clone(), store.clone(), 1, ClusterSeen::Silent), expected, "{data:?} {store:?}");
        }
    }

    #[test]
    fn one_of_several_is_started_on_good_data_and_never_restored_alone() {
        for store in
            [StoreSeen::Empty, StoreSeen::NotConfigured, StoreSeen::Reaches(9), StoreSeen::Unreachable("x".to_owned())]
        {
            let lists = || ClusterSeen::Lists { id: 7, client_urls: Vec::new() };
            for cluster in [ClusterSeen::Silent, ClusterSeen::WithoutUs, ClusterSeen::Awaits, lists()] {
                assert_eq!(step(Data::Valid { reach: Some(1) }, store.clone(), 3, cluster.clone()), "start");
                assert_eq!(step(Data::Unknown("x".to_owned()), store.clone(), 3, cluster), "refuse");
            }
            assert_eq!(step(Data::Broken("x".to_owned()), store.clone(), 3, ClusterSeen::Silent), "refuse");
            for data in [Data::Absent, Data::Broken("x".to_owned())] {
                assert_eq!(step(data.clone(), store.clone(), 3, ClusterSeen::WithoutUs), "join");
                assert_eq!(step(data.clone(), store.clone(), 3, ClusterSeen::Awaits), "go on joining");
                assert_eq!(step(data, store.clone(), 3, lists()), "replace");
            }
            let alone = if store == StoreSeen::Empty { "start" } else { "refuse" };
            assert_eq!(step(Data::Absent, store, 3, ClusterSeen::Silent), alone);
        }
    }
}
