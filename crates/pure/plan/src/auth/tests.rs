//! From any users and roles to the declared ones, without taking from anyone what is theirs.

use proptest::prelude::*;

use super::*;
use crate::spec::{Keys, Permission, Role, User};

fn spec() -> AuthSpec {
    AuthSpec {
        enabled: true,
        prune: false,
        agent_user: Some("quorate-admin".into()),
        roles: vec![Role {
            name: "app".into(),
            permissions: vec![Permission { keys: Keys::Prefix("/app/".into()), access: Access::ReadWrite }],
        }],
        users: vec![User { name: "alice".into(), password_file: Some("/pw/alice".into()), roles: vec!["app".into()] }],
    }
}

fn nothing() -> AuthSeen {
    AuthSeen { enabled: false, users: BTreeMap::new(), roles: BTreeMap::new() }
}

fn steps(spec: &AuthSpec, seen: &AuthSeen) -> Vec<String> {
    plan_auth(spec, seen).steps.iter().map(ToString::to_string).collect()
}

/// What etcd has after a step.
fn apply(seen: &mut AuthSeen, step: &AuthStep, spec: &AuthSpec) {
    let declared = |user: &str| spec.users.iter().any(|there| there.name == user && there.password_file.is_some());
    match step.clone() {
        AuthStep::AddRole { role } => {
            assert!(seen.roles.insert(role, BTreeMap::new()).is_none(), "no role is made twice");
        }
        AuthStep::Grant { role, key, range_end, access } => {
            seen.roles.get_mut(&role).expect("the role is there").insert((key, range_end), access);
        }
        AuthStep::AddUser { user, password_file } => {
            let password = if password_file.is_some() { PasswordSeen::Right } else { PasswordSeen::NotDeclared };
            let made = UserSeen { roles: BTreeSet::new(), password };
            assert!(seen.users.insert(user, made).is_none(), "no user is made twice");
        }
        AuthStep::GrantRole { user, role } => {
            assert!(seen.roles.contains_key(&role), "etcd refuses a role that is not there");
            assert!(seen.users.get_mut(&user).expect("the user is there").roles.insert(role));
        }
        AuthStep::SetPassword { user, .. } => {
            assert!(declared(&user));
            seen.users.get_mut(&user).expect("the user is there").password = PasswordSeen::Right;
        }
        AuthStep::RevokeRole { user, role } => {
            assert!(seen.users.get_mut(&user).expect("the user is there").roles.remove(&role));
        }
        AuthStep::Revoke { role, key, range_end } => {
            assert!(seen.roles.get_mut(&role).expect("the role is there").remove(&(key, range_end)).is_some());
        }
        AuthStep::RemoveUser { user } => assert!(seen.users.remove(&user).is_some()),
        AuthStep::RemoveRole { role } => {
            assert!(seen.roles.remove(&role).is_some());
            for user in seen.users.values_mut() {
                user.roles.remove(&role);
            }
        }
        AuthStep::Enable => {
            let root = seen.users.get(ROOT).expect("etcd wants a user root");
            assert!(root.roles.contains(ROOT), "etcd wants root to have the role root");
            seen.enabled = true;
        }
    }
}

#[test]
fn a_fresh_cluster_gets_root_first_and_is_enabled_last() {
    assert_eq!(
        steps(&spec(), &nothing()),
        [
            "add role `root`",
            "add role `app`",
            "let role `app` read and write keys from `/app/` up to `/app0`",
            "add user `root` without password",
            "give user `root` role `root`",
            "add user `quorate-admin` without password",
            "give user `quorate-admin` role `root`",
            "add user `alice`",
            "give user `alice` role `app`",
            "enable auth",
        ]
    );
}

#[test]
fn a_second_run_changes_nothing() {
    let mut seen = nothing();
    for step in plan_auth(&spec(), &nothing()).steps {
        apply(&mut seen, &step, &spec());
    }
    assert_eq!(plan_auth(&spec(), &seen), AuthPlan::default());
}

#[test]
fn what_is_moved_is_granted_before_it_is_taken_away() {
    let mut seen = nothing();
    for step in plan_auth(&spec(), &nothing()).steps {
        apply(&mut seen, &step, &spec());
    }
    let mut moved = spec();
    moved.roles[0].permissions[0] = Permission { keys: Keys::Prefix("/app2/".into()), access: Access::Read };
    moved.roles.push(Role {
        name: "old".into(),
        permissions: vec![Permission { keys: Keys::Prefix("/app/".into()), access: Access::Read }],
    });
    moved.users[0].roles = vec!["old".into()];
    assert_eq!(
        steps(&moved, &seen),
        [
            "add role `old`",
            "let role `app` read keys from `/app2/` up to `/app20`",
            "let role `old` read keys from `/app/` up to `/app0`",
            "give user `alice` role `old`",
            "take role `app` from user `alice`",
            "take keys from `/app/` up to `/app0` from role `app`",
        ]
    );
    // From write to read: both in between.
    seen.roles.get_mut("app").unwrap().values_mut().for_each(|access| *access = Access::Write);
    let mut read = spec();
    read.roles[0].permissions[0].access = Access::Read;
    assert_eq!(
        steps(&read, &seen),
        [
            "let role `app` read and write keys from `/app/` up to `/app0`",
            "let role `app` read keys from `/app/` up to `/app0`"
        ]
    );
}

#[test]
fn strangers_are_reported_and_removed_only_when_asked() {
    let mut seen = nothing();
    for step in plan_auth(&spec(), &nothing()).steps {
        apply(&mut seen, &step, &spec());
    }
    seen.users.insert("bob".into(), UserSeen { roles: BTreeSet::new(), password: PasswordSeen::NotDeclared });
    seen.roles.insert("odd".into(), BTreeMap::new());
    let plan = plan_auth(&spec(), &seen);
    assert!(plan.steps.is_empty());
    assert_eq!(plan.remarks, ["user `bob` is not declared", "role `odd` is not declared"]);
    let prune = AuthSpec { prune: true, ..spec() };
    assert_eq!(
        steps(&prune, &seen),
        ["remove user `bob`, who is not declared", "remove role `odd`, which is not declared"]
    );
}

#[test]
fn passwords_are_set_where_they_are_wrong_and_before_they_first_count() {
    let mut seen = nothing();
    for step in plan_auth(&spec(), &nothing()).steps {
        apply(&mut seen, &step, &spec());
    }
    seen.users.get_mut("alice").unwrap().password = PasswordSeen::Wrong;
    assert_eq!(steps(&spec(), &seen), ["set the password of user `alice`"]);
    seen.users.get_mut("alice").unwrap().password = PasswordSeen::NeverHasOne;
    let plan = plan_auth(&spec(), &seen);
    assert!(plan.steps.is_empty() && plan.remarks[0].contains("`etcdctl user delete alice`"), "{plan:?}");
    seen.enabled = false;
    seen.users.get_mut("alice").unwrap().password = PasswordSeen::Unknown;
    assert_eq!(steps(&spec(), &seen), ["set the password of user `alice`", "enable auth"]);
    let off = AuthSpec { enabled: false, ..spec() };
    assert!(steps(&off, &seen).is_empty(), "nothing is set again and again while nobody asks for it");
    seen.enabled = true;
    assert!(plan_auth(&off, &seen).remarks[0].contains("etcdctl auth disable"));
}

const NAMES: [&str; 4] = ["root", "quorate-admin", "alice", "bob"];
const ROLES: [&str; 3] = ["app", "look", "odd"];

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::ReadWrite)]
}

fn any_keys() -> impl Strategy<Value = Keys> {
    prop_oneof![
        Just(Keys::Prefix(String::new())),
        Just(Keys::Prefix("/a/".into())),
        Just(Keys::Key("/a".into())),
        Just(Keys::Range { from: "b".into(), to: None })
    ]
}

fn any_spec() -> impl Strategy<Value = AuthSpec> {
    let permissions = prop::collection::vec((any_keys(), access()), 0..4).prop_map(|list| {
        let mut found: Vec<Permission> = Vec::new();
        for (keys, access) in list {
            if found.iter().all(|there| there.keys != keys) {
                found.push(Permission { keys, access });
            }
        }
        found
    });
    let roles = prop::collection::btree_map(prop::sample::select(&ROLES[..2]), permissions, 0..3);
    let held = prop::collection::btree_set(prop::sample::select(&ROLES[..2]), 0..3);
    let users = prop::collection::btree_map(prop::sample::select(&NAMES[..]), (any::<bool>(), held), 0..5);
    (any::<bool>(), any::<bool>(), roles, users).prop_map(|(enabled, prune, roles, users)| {
        let roles: Vec<Role> =
            roles.into_iter().map(|(name, permissions)| Role { name: name.into(), permissions }).collect();
        let users = users.into_iter().map(|(name, (password, held))| User {
            name: name.into(),
            password_file: password.then(|| format!("/pw/{name}")),
            roles: held
                .into_iter()
                .filter(|held| roles.iter().any(|role| role.name == *held))
                .map(ToOwned::to_owned)
                .collect(),
        });
        AuthSpec { enabled, prune, agent_user: Some("quorate-admin".into()), users: users.collect(), roles }
    })
}

/// Etcd as `first` left it, seen through the eyes of `then`.
fn seen_after(first: &AuthSpec, then: &AuthSpec) -> AuthSeen {
    let mut seen = nothing();
    for step in plan_auth(first, &nothing()).steps {
        apply(&mut seen, &step, first);
    }
    let enabled = seen.enabled;
    for (name, user) in &mut seen.users {
        let declared = then.users.iter().any(|there| there.name == *name && there.password_file.is_some());
        user.password = match (declared, enabled) {
            (false, _) => PasswordSeen::NotDeclared,
            (true, true) => PasswordSeen::Wrong,
            (true, false) => PasswordSeen::Unknown,
        };
    }
    seen
}

/// What a user may do with which keys.
fn rights(seen: &AuthSeen, user: &str) -> BTreeMap<KeyRange, Access> {
    let mut rights = BTreeMap::new();
    for role in seen.users.get(user).map(|user| &user.roles).into_iter().flatten() {
        for (keys, access) in seen.roles.get(role).into_iter().flatten() {
            let held = rights.entry(keys.clone()).or_insert(*access);
            *held = together(*held, *access);
        }
    }
    rights
}

proptest! {
    #[test]
    fn every_change_converges_and_takes_nothing_that_is_declared(first in any_spec(), then in any_spec()) {
        let mut seen = seen_after(&first, &then);
        let before = seen.clone();
        let plan = plan_auth(&then, &seen);
        let mut end = seen.clone();
        plan.steps.iter().for_each(|step| apply(&mut end, step, &then));
        for (index, step) in plan.steps.iter().enumerate() {
            prop_assert_eq!(*step == AuthStep::Enable, index + 1 == plan.steps.len() && !seen.enabled && then.enabled);
            apply(&mut seen, step, &then);
            for user in NAMES {
                let (had, has, will) = (rights(&before, user), rights(&seen, user), rights(&end, user));
                for (keys, access) in had {
                    let Some(kept) = will.get(&keys).filter(|will| together(**will, access) == access) else { continue };
                    let now = has.get(&keys).copied();
                    prop_assert!(now.is_some_and(|now| together(now, *kept) == now), "{} lost {:?} in between", user, keys);
                }
                if user == ROOT || user == "quorate-admin" {
                    let had_root = before.users.get(user).is_some_and(|user| user.roles.contains(ROOT));
                    let has_root = seen.users.get(user).is_some_and(|user| user.roles.contains(ROOT));
                    prop_assert!(has_root || !had_root, "{} keeps every right", user);
                }
            }
        }
        prop_assert!(plan_auth(&then, &seen).steps.is_empty(), "{:?}", plan_auth(&then, &seen));
    }
}
