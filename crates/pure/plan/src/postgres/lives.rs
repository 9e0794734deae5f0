//! Thousands of bootstraps on a store in memory, with nodes that are killed between any two steps, lose their leases, and act
//! on what they saw long ago.
//!
//! **Invariant (of the tests):** one group, ever; one write master at a time; and when nobody is killed any more, all is done.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use quorate_kv::{Change, Compare, LeaseId, Model, Outcome, Revision, Scope, Txn};

use super::tests::spec;
use super::*;
use crate::check::check_pg;
use crate::spec::PgSpec;

const NAMES: [&str; 3] = ["n1", "n2", "n3"];
const LOCK: &[u8] = b"locks/bootstrap";
const TTL: Duration = Duration::from_secs(5);

/// What outlives a kill, and what does not.
#[derive(Default)]
struct Node {
    data: bool,
    prepared: bool,
    bound: Option<String>,
    linked: bool,
    schema: u32,
    // Lost by a kill:
    serves: bool,
    lease: Option<LeaseId>,
    lock: Option<Revision>,
    configured: bool,
    offered: bool,
    /// A step that was decided and not yet taken, with what it was decided from.
    pending: Option<(PgStep, Records)>,
    still: u64,
    last: Option<Records>,
}

struct World {
    spec: PgSpec,
    store: Model,
    nodes: BTreeMap<&'static str, Node>,
    groups: Vec<String>,
    epoch: u64,
    fresh: u64,
}

impl World {
    fn new() -> World {
        let nodes = NAMES.map(|name| (name, Node::default())).into();
        World { spec: spec(), store: Model::new(10_000), nodes, groups: Vec::new(), epoch: 0, fresh: 0 }
    }

    fn kill(&mut self, me: &'static str) {
        let node = self.nodes.get_mut(me).unwrap();
        let kept = std::mem::take(node);
        let Node { data, prepared, bound, linked, schema, .. } = kept;
        *node = Node { data, prepared, bound, linked, schema, ..Node::default() };
    }

    fn records(&self) -> Records {
        read_records(&self.store.list(&Scope::prefix(keys::ALL))).unwrap()
    }

    fn look(&mut self, me: &str) -> Seen {
        let records = self.records();
        let at = |entry: &quorate_kv::Entry| String::from_utf8(entry.key.clone()).unwrap().split_off("reg/".len());
        let listed = self.store.list(&Scope::prefix("reg/"));
        let of = |entry: &quorate_kv::Entry| serde_json::from_slice::<Option<String>>(&entry.value).unwrap();
        let registered = listed.entries.iter().map(|entry| (at(entry), of(entry))).collect();
        let lock = self.store.list(&Scope::key(LOCK)).entries.pop().map(|entry| entry.revision);
        let node = self.nodes.get_mut(me).unwrap();
        node.still = if node.last.as_ref() == Some(&records) { node.still + 1000 } else { 0 };
        node.last = Some(records.clone());
        let mine = Mine {
            data: if node.data { DataNow::Ours } else { DataNow::Absent },
            serves: node.serves,
            prepared: node.prepared && node.serves,
            bound: node.bound.clone(),
            linked: node.linked,
            lost: None,
            schema: node.schema,
            configured: node.configured,
            offered: node.offered,
            isolated: false,
            links: BTreeMap::new(),
            unsent: UnsentNow::NotRead,
        };
        let lock = if node.lock.is_some() && node.lock == lock { LockNow::Mine } else { LockNow::NotMine };
        let store = StoreSeen { registered, lock, records, still_ms: node.still };
        Seen { mine, store: StoreNow::Known(Box::new(store)) }
    }

    /// Takes a step that was decided on from some records, new or old.
    fn take(&mut self, me: &'static str, step: PgStep, records: &Records) {
        let now = self.records();
        let node = self.nodes.get_mut(me).unwrap();
        match step {
            PgStep::InitData => node.data = true,
            PgStep::StartServer => node.serves = node.data,
            PgStep::Prepare => node.prepared = node.serves,
            PgStep::Register => {
                let lease = self.store.grant(TTL);
                let value = serde_json::to_vec(&node.bound).unwrap();
                let key = format!("reg/{me}").into_bytes();
                // An entry of an earlier run of this node is replaced.
                let _ = self.store.txn(&Txn { when: vec![], then: vec![Change::Delete(key.clone())] });
                let _ = self.store.txn(&Txn { when: vec![], then: vec![Change::Hold(key, value, lease.clone())] });
                node.lease = Some(lease);
            }
            PgStep::TakeLock => {
                let Some(lease) = node.lease.clone() else { return };
                let then = vec![Change::Hold(LOCK.to_vec(), me.as_bytes().to_vec(), lease)];
                if let Ok(Outcome::Committed(at)) = self.store.txn(&Txn { when: vec![], then }) {
                    node.lock = at;
                }
            }
            PgStep::ReleaseLock => {
                if let Some(at) = node.lock.take() {
                    let when = vec![Compare::Unchanged(LOCK.to_vec(), at)];
                    let _ = self.store.txn(&Txn { when, then: vec![Change::Delete(LOCK.to_vec())] });
                }
            }
            PgStep::Lead { epoch } => {
                let fence = node.lock.map(|at| Compare::Unchanged(LOCK.to_vec(), at));
                if let Ok(Outcome::Committed(_)) = self.store.txn(&take_lead(records, me, epoch, fence)) {
                    assert!(epoch > self.epoch, "epochs grow: {epoch} after {}", self.epoch);
                    self.epoch = epoch;
                }
            }
            PgStep::CreateGroup { epoch, id, nodes } => {
                self.fresh += 1;
                let id = id.unwrap_or_else(|| format!("g{}", self.fresh));
                let last_id = nodes.values().copied().max().unwrap_or_default();
                let group = Group { id: id.clone(), nodes, last_id, epoch };
                if let Ok(Outcome::Committed(_)) = self.store.txn(&take_group(records, &group)) {
                    assert_eq!(epoch, self.epoch, "only the newest leader writes a group down");
                    self.groups.push(id);
                }
            }
            PgStep::Bind { group } => {
                assert!(node.bound.is_none() || node.bound.as_deref() == Some(&group), "bound twice");
                node.bound = Some(group.clone());
                let _ = self.store.txn(&note_bound(records, me, &group));
            }
            PgStep::Link { .. } => node.linked = now.bound.len() == NAMES.len(),
            PgStep::NoteLinked { group } => drop(self.store.txn(&note_joined(records, me, &group))),
            PgStep::LaySchema { epoch } => {
                for node in self.nodes.values_mut() {
                    node.schema = 1;
                }
                let _ = self.store.txn(&note_schema(records, &SchemaNote { version: 1, epoch }));
            }
            PgStep::ClaimWriter => {
                let Some(lease) = node.lease.clone() else { return };
                let _ = self.store.txn(&take_writer(records, me, &lease, &BTreeMap::new()));
            }
            PgStep::Configure => node.configured = true,
            PgStep::Offer => node.offered = true,
            other => panic!("{other}: no writer was lost"),
        }
    }

    fn act(&mut self, me: &'static str, doing: Doing) {
        let records = self.records();
        match doing {
            Doing::Kill => self.kill(me),
            Doing::Time => {
                self.store.pass(Duration::from_secs(2));
            }
            Doing::Late => {
                if let Some((step, then)) = self.nodes.get_mut(me).unwrap().pending.take() {
                    self.take(me, step, &then);
                }
            }
            Doing::Decide | Doing::Turn => {
                let lease = self.nodes[me].lease.clone();
                if let Some(lease) = lease {
                    let _ = self.store.renew(&lease);
                }
                let seen = self.look(me);
                let plan = next(&self.spec, me, &seen);
                assert!(plan.refused.is_none(), "{me}: {}", plan.render());
                assert_eq!(check_pg(me, &seen, &plan), Ok(()), "{me}: {}", plan.render());
                let Some(step) = plan.steps.into_iter().next() else { return };
                match doing {
                    Doing::Decide => self.nodes.get_mut(me).unwrap().pending = Some((step, records)),
                    _ => self.take(me, step, &records),
                }
            }
        }
        self.groups.dedup();
        assert!(self.groups.len() <= 1, "two groups: {:?}", self.groups);
        let bound: std::collections::BTreeSet<&String> =
            self.nodes.values().filter_map(|node| node.bound.as_ref()).collect();
        assert!(bound.len() <= 1, "bound to {bound:?}");
    }
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Look, decide, do.
    Turn,
    /// Look and decide, and do it some other time.
    Decide,
    /// Do what was decided.
    Late,
    /// Lose all that is in memory.
    Kill,
    /// Let leases end.
    Time,
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        10 => Just(Doing::Turn),
        3 => Just(Doing::Decide),
        3 => Just(Doing::Late),
        1 => Just(Doing::Kill),
        1 => Just(Doing::Time),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn kills_between_any_two_steps_never_make_two_groups_and_the_rest_finishes(
        life in proptest::collection::vec((0_usize..3, doing()), 0..160)
    ) {
        let mut world = World::new();
        for (who, what) in life {
            world.act(NAMES[who], what);
        }
        // From here on nobody is killed; time passes for what the killed left behind.
        for _ in 0..4 {
            world.act(NAMES[0], Doing::Time);
            for name in NAMES {
                world.act(name, Doing::Turn);
            }
        }
        for _ in 0..80 {
            for name in NAMES {
                world.act(name, Doing::Turn);
            }
        }
        for name in NAMES {
            let seen = world.look(name);
            let plan = next(&world.spec, name, &seen);
            prop_assert!(plan.is_done(), "{name}: {}", plan.render());
        }
        prop_assert_eq!(world.groups.len(), 1);
        // A second bootstrap changes nothing.
        let before = world.store.revision();
        for name in NAMES {
            world.act(name, Doing::Turn);
        }
        prop_assert_eq!(world.store.revision(), before);
    }
}
