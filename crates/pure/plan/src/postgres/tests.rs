//! Plans as texts: what a node does in each situation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate_kv::Revision;

use super::*;
use crate::spec::{PgSpec, Spec};

pub(super) fn spec() -> PgSpec {
    let text = "token: t\ntls: {dir: /p}\nmembers: [{name: n1, address: h1}, {name: n2, address: h2}, {name: n3, address: h3}]\n\
                postgres: {users: [{name: app, password-file: /s/app}]}\n";
    Spec::parse(text.as_bytes(), "c").map_err(|found| found.render()).unwrap().0.postgres.unwrap()
}

pub(super) fn mine() -> Mine {
    Mine {
        data: DataNow::Ours,
        serves: true,
        prepared: true,
        bound: None,
        linked: false,
        lost: None,
        schema: 0,
        configured: false,
        offered: false,
        isolated: false,
        links: BTreeMap::new(),
        unsent: UnsentNow::NotRead,
    }
}

pub(super) fn group() -> Group {
    let nodes = [("n1".to_owned(), 1), ("n2".to_owned(), 2), ("n3".to_owned(), 3)];
    Group { id: "g".to_owned(), nodes: nodes.into(), last_id: 3, epoch: 1 }
}

fn everyone() -> BTreeMap<String, Option<String>> {
    ["n1", "n2", "n3"].map(|name| (name.to_owned(), None)).into()
}

pub(super) fn noted(names: &[&str]) -> BTreeMap<String, Noted> {
    names.iter().map(|name| ((*name).to_owned(), Noted { group: "g".to_owned() })).collect()
}

pub(super) fn at<T>(record: T) -> Option<(T, Revision)> {
    Some((record, Revision(7)))
}

pub(super) fn store(records: Records) -> StoreSeen {
    StoreSeen { registered: everyone(), lock: LockNow::NotMine, records, still_ms: 0 }
}

pub(super) fn plan(me: &str, mine: Mine, store: StoreSeen) -> String {
    next(&spec(), me, &Seen { mine, store: StoreNow::Known(Box::new(store)) }).render()
}

fn leader(node: &str, epoch: u64) -> Option<(Leader, Revision)> {
    at(Leader { node: node.to_owned(), epoch })
}

#[test]
fn everyone_first_brings_up_its_own_server() {
    let empty = Mine { data: DataNow::Absent, serves: false, prepared: false, ..mine() };
    let lonely = StoreSeen { registered: BTreeMap::new(), ..store(Records::default()) };
    assert_eq!(
        plan("n2", empty.clone(), lonely.clone()),
        "init-data     make the data dir\nstart-server  start the server\n\
         prepare       make users, database and extensions\nregister      register this node\n"
    );
    assert_eq!(
        plan("n2", Mine { serves: false, ..mine() }, store(Records::default())),
        "start-server  start the server\n"
    );
    let here = StoreSeen { registered: [("n2".to_owned(), None)].into(), ..lonely };
    assert_eq!(plan("n2", mine(), here), "waiting for   `n1` and `n3`\n");
    // Without the store it is not known whether another node has taken over: the server comes up by itself.
    let dark = Seen { mine: Mine { serves: false, ..mine() }, store: StoreNow::Unknown("it is silent".to_owned()) };
    let alone = "start-isolated start the server without connections to other nodes\n";
    assert_eq!(next(&spec(), "n1", &dark).render(), alone);
    let dark = Seen { mine: mine(), store: StoreNow::Unknown("it is silent".to_owned()) };
    assert_eq!(next(&spec(), "n1", &dark).render(), "waiting for   the store: it is silent\n");
    let foreign = Mine { data: DataNow::Foreign("it is group x's".to_owned()), ..empty };
    let said = plan("n1", foreign, store(Records::default()));
    assert!(said.starts_with("refused       the data dir is not this node's: it is group x's"), "{said}");
}

#[test]
fn one_takes_the_lock_and_leads_and_writes_the_group_down() {
    assert_eq!(plan("n2", mine(), store(Records::default())), "take-lock     take the bootstrap lock\n");
    let locked = |records| StoreSeen { lock: LockNow::Mine, ..store(records) };
    assert_eq!(
        plan("n2", mine(), locked(Records::default())),
        "lead          lead the bootstrap, epoch 1\ncreate-group  write down a new group of 3 nodes, epoch 1\n\
         release-lock  give the bootstrap lock back\n"
    );
    let led = Records { leader: leader("n2", 4), ..Records::default() };
    assert!(
        plan("n2", mine(), locked(led.clone())).starts_with("create-group  write down a new group of 3 nodes, epoch 4")
    );
    assert_eq!(
        plan("n1", mine(), store(led.clone())),
        "waiting for   n2, which leads epoch 4, to write the group down\n"
    );
    assert!(plan("n1", mine(), locked(led)).starts_with("release-lock"));
}

#[test]
fn a_leader_that_is_gone_or_stands_still_is_replaced_by_the_next_epoch() {
    let led = Records { leader: leader("n1", 1), ..Records::default() };
    let mut gone = StoreSeen { lock: LockNow::Mine, ..store(led.clone()) };
    gone.registered.remove("n1");
    assert!(plan("n2", mine(), gone).starts_with("lead          lead the bootstrap, epoch 2\ncreate-group"));
    let still = StoreSeen { lock: LockNow::Mine, still_ms: 30_000, ..store(led) };
    assert!(plan("n2", mine(), still).starts_with("lead          lead the bootstrap, epoch 2\ncreate-group"));
    let all = Records {
        leader: leader("n1", 2),
        group: at(group()),
        bound: noted(&["n1", "n2", "n3"]),
        joined: noted(&["n1", "n2", "n3"]),
        ..Records::default()
    };
    let bound = Mine { bound: Some("g".to_owned()), linked: true, ..mine() };
    let mut gone = store(all.clone());
    assert_eq!(plan("n2", bound.clone(), gone.clone()), "waiting for   n1, which leads epoch 2, to lay the schema\n");
    assert_eq!(
        plan("n1", bound.clone(), gone.clone()),
        "lay-schema    lay the schema on every node and see it arrive, epoch 2\nclaim-writer  become the write master\n"
    );
    gone.registered.remove("n1");
    assert_eq!(
        plan("n2", bound, gone),
        "take-lock     take the bootstrap lock\nlead          lead the bootstrap, epoch 3\n\
         release-lock  give the bootstrap lock back\nlay-schema    lay the schema on every node and see it arrive, epoch 3\n"
    );
}

#[test]
fn who_does_not_lead_is_bound_and_linked_and_waits() {
    let records = Records { leader: leader("n1", 1), group: at(group()), ..Records::default() };
    assert_eq!(plan("n3", mine(), store(records.clone())), "bind          bind the database to group g\n");
    let bound = Mine { bound: Some("g".to_owned()), ..mine() };
    let records = Records { bound: noted(&["n1", "n3"]), ..records };
    assert_eq!(plan("n3", bound.clone(), store(records.clone())), "waiting for   `n2` to be bound to the group\n");
    let records = Records { bound: noted(&["n1", "n2", "n3"]), ..records };
    assert_eq!(
        plan("n3", bound.clone(), store(records.clone())),
        "link          link with every other node\nnote-linked   note that the links are made\n"
    );
    let linked = Mine { linked: true, ..bound };
    assert_eq!(plan("n3", linked.clone(), store(records.clone())), "note-linked   note that the links are made\n");
    // One that comes to a group that stands does not link itself: its rows have to be copied.
    let later = Records { schema: at(SchemaNote { version: 1, epoch: 1 }), ..records.clone() };
    let apart = Mine { linked: false, ..linked.clone() };
    assert_eq!(plan("n3", apart, store(later)), "waiting for   `quorate pg join n3`\n");
    let records = Records { joined: noted(&["n1", "n3"]), ..records };
    assert_eq!(plan("n3", linked.clone(), store(records.clone())), "waiting for   `n2` to be linked\n");
    let records =
        Records { joined: noted(&["n1", "n2", "n3"]), schema: at(SchemaNote { version: 1, epoch: 1 }), ..records };
    assert_eq!(
        plan("n3", linked.clone(), store(records.clone())),
        "waiting for   schema and first rows to arrive here\n"
    );
    let arrived = Mine { schema: 1, ..linked };
    assert_eq!(plan("n3", arrived.clone(), store(records.clone())), "waiting for   n1 to become the write master\n");
    let records = Records { last_writer: at(WriterNote { node: "n1".to_owned(), epoch: 1 }), ..records };
    assert_eq!(
        plan("n3", arrived.clone(), store(records.clone())),
        "configure     configure pooler and proxy\noffer         register the services\n"
    );
    let done = Mine { configured: true, offered: true, ..arrived };
    assert_eq!(plan("n3", done.clone(), store(records.clone())), "nothing to do\n");
    // What it missed is gone: it does not go on as if nothing were, unless it is the one that writes.
    let behind = Mine { lost: Some("n1".to_owned()), ..done.clone() };
    assert_eq!(
        plan("n3", behind.clone(), store(records.clone())),
        "refused       `n1` no longer keeps what this node has missed [Q1275]\n"
    );
    let writes = Records { writer: at(WriterNote { node: "n3".to_owned(), epoch: 2 }), ..records.clone() };
    assert_eq!(plan("n3", behind, store(writes)), "nothing to do\n");
    // One that comes back alone does not wait for the others.
    let alone = StoreSeen { registered: [("n3".to_owned(), None)].into(), ..store(records) };
    assert_eq!(plan("n3", done, alone), "nothing to do\n");
}

#[test]
fn groups_are_never_mixed() {
    let records = Records { leader: leader("n1", 1), group: at(group()), ..Records::default() };
    let other = Mine { bound: Some("x".to_owned()), ..mine() };
    let said = plan("n3", other.clone(), store(records.clone()));
    assert!(said.starts_with("refused       the database is bound to group x, and the store has group g"), "{said}");
    // A store that forgot everything is told the group that the nodes are bound to.
    let mut forgot = StoreSeen { lock: LockNow::Mine, ..store(Records::default()) };
    forgot.registered.insert("n2".to_owned(), Some("g".to_owned()));
    assert!(plan("n1", mine(), forgot.clone()).contains("create-group  write down group g of 3 nodes again, epoch 1"));
    let said = plan("n3", other, forgot);
    assert!(said.starts_with("refused       the nodes are bound to different groups: `g` and `x`"), "{said}");
    let without = Records { group: at(Group { nodes: [("n1".to_owned(), 1)].into(), ..group() }), ..records };
    assert!(plan("n3", mine(), store(without)).starts_with("refused       group `t` was written down without `n3`"));
}

pub(super) fn writer_seen() -> WriterSeen {
    WriterSeen {
        holds: false,
        well: true,
        records: Records { last_writer: at(WriterNote { node: "n1".to_owned(), epoch: 3 }), ..Records::default() },
        alive: ["n1", "n2", "n3"].map(str::to_owned).into(),
        vacant: Vacancy::Free(Duration::ZERO),
        applied: 100,
        link_held: true,
        positions: BTreeMap::new(),
    }
}

fn stands(candidates: &[(&str, u64)]) -> BTreeMap<String, Candidate> {
    candidates.iter().map(|(name, applied)| ((*name).to_owned(), Candidate { epoch: 4, applied: *applied })).collect()
}

#[test]
fn the_most_advanced_node_takes_the_place_and_the_next_one_if_it_does_not() {
    let spec = spec();
    let free = |candidates: &[(&str, u64)], applied, ms| {
        let mut seen = WriterSeen { applied, vacant: Vacancy::Free(Duration::from_millis(ms)), ..writer_seen() };
        seen.records.candidates = stands(candidates);
        seen
    };
    let ask = |me: &str, seen: &WriterSeen| next_writer(&spec, me, seen);
    assert_eq!(ask("n2", &free(&[], 100, 0)), WriterPlan::Stand(Candidate { epoch: 4, applied: 100 }));
    // n3 has not said how far it is.
    assert_eq!(ask("n2", &free(&[("n2", 100)], 100, 50)), WriterPlan::Follow);
    assert_eq!(ask("n2", &free(&[("n2", 100)], 100, 300)), WriterPlan::Claim(BTreeMap::new()));
    let both = [("n2", 100), ("n3", 120)];
    assert_eq!(ask("n2", &free(&both, 100, 400)), WriterPlan::Follow);
    assert_eq!(ask("n3", &free(&both, 120, 10)), WriterPlan::Claim(BTreeMap::new()));
    assert_eq!(ask("n2", &free(&both, 100, 1300)), WriterPlan::Claim(BTreeMap::new()));
    let equal = [("n2", 120), ("n3", 120)];
    assert_eq!(ask("n2", &free(&equal, 120, 10)), WriterPlan::Claim(BTreeMap::new()));
    assert_eq!(ask("n3", &free(&equal, 120, 10)), WriterPlan::Follow);
    // The last one has all that it wrote.
    assert_eq!(ask("n1", &free(&equal, 0, 0)), WriterPlan::Stand(Candidate { epoch: 4, applied: u64::MAX }));
    let ill = WriterSeen { well: false, ..free(&equal, 120, 5000) };
    assert_eq!(ask("n2", &ill), WriterPlan::Follow);
}

#[test]
fn who_has_the_place_keeps_it_until_it_is_asked_or_ill() {
    let spec = spec();
    let holds = WriterSeen { holds: true, vacant: Vacancy::Taken, ..writer_seen() };
    assert_eq!(next_writer(&spec, "n1", &holds), WriterPlan::Keep);
    assert_eq!(next_writer(&spec, "n1", &WriterSeen { well: false, ..holds.clone() }), WriterPlan::GiveUp);
    let mut asked = holds;
    asked.records.order = at(Order { writer: "n3".to_owned(), id: "1".to_owned() });
    assert_eq!(next_writer(&spec, "n1", &asked), WriterPlan::HandOver("n3".to_owned()));
    asked.alive = BTreeSet::from(["n1".to_owned()]);
    assert_eq!(next_writer(&spec, "n1", &asked), WriterPlan::Keep);
    let mut handed = writer_seen();
    handed.records.handover = at(Handover { to: "n3".to_owned(), epoch: 4 });
    assert_eq!(next_writer(&spec, "n3", &handed), WriterPlan::Claim(BTreeMap::new()));
    assert_eq!(next_writer(&spec, "n2", &handed), WriterPlan::Follow);
    handed.vacant = Vacancy::Free(Duration::from_secs(4));
    assert_eq!(next_writer(&spec, "n2", &handed), WriterPlan::Claim(BTreeMap::new()));
    let taken = WriterSeen { vacant: Vacancy::Taken, ..writer_seen() };
    assert_eq!(next_writer(&spec, "n2", &taken), WriterPlan::Follow);
}
