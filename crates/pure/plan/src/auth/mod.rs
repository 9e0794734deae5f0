//! Users and roles: what leads from those that etcd has to those that are declared.
//!
//! **Invariant:** no step takes from anyone what is declared for them: everything is granted before anything is taken away, and
//! the agent's own user and `root` keep every right. Auth is enabled last, and never disabled.

mod step;

use std::collections::{BTreeMap, BTreeSet};

pub use step::AuthStep;

use crate::roster::quoted;
use crate::spec::{Access, AuthSpec, ROOT};

/// The key and the end of a range, as etcd stores them.
pub type KeyRange = (Vec<u8>, Vec<u8>);

/// What etcd has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthSeen {
    /// Whether it asks who somebody is.
    pub enabled: bool,
    /// Its users, by name.
    pub users: BTreeMap<String, UserSeen>,
    /// Its roles, by name, with what each permits.
    pub roles: BTreeMap<String, BTreeMap<KeyRange, Access>>,
}

/// One user of etcd's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSeen {
    /// What the user may do.
    pub roles: BTreeSet<String>,
    /// How the declared password fits.
    pub password: PasswordSeen,
}

/// How the declared password fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordSeen {
    /// None is declared, so nothing was tried.
    NotDeclared,
    /// It opens.
    Right,
    /// It does not.
    Wrong,
    /// The user was made without one, and etcd lets none be set later.
    NeverHasOne,
    /// Nobody can try while etcd does not ask.
    Unknown,
}

/// What is to be done, in this order, and what is to be said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthPlan {
    /// Each is one call.
    pub steps: Vec<AuthStep>,
    /// What differs from the file and is left alone.
    pub remarks: Vec<String>,
}

/// The steps from what is there to what is declared. Nothing to do: no steps.
pub fn plan_auth(spec: &AuthSpec, seen: &AuthSeen) -> AuthPlan {
    let wanted = Wanted::of(spec);
    let mut plan = AuthPlan::default();
    add_roles(&wanted, seen, &mut plan);
    add_users(&wanted, seen, &mut plan);
    set_passwords(spec, &wanted, seen, &mut plan);
    take_away(&wanted, seen, &mut plan);
    undeclared(spec, &wanted, seen, &mut plan);
    match (spec.enabled, seen.enabled) {
        (true, false) => plan.steps.push(AuthStep::Enable),
        (false, true) => plan.remarks.push(
            "auth is enabled, and the cluster file says it is not: who wants everyone to read and write everything runs \
             `etcdctl auth disable`"
                .to_owned(),
        ),
        (true, true) | (false, false) => {}
    }
    plan
}

/// What is declared, with what Quorate itself needs.
struct Wanted<'a> {
    /// `root` and the agent's user first: they must hold when the rest changes.
    users: Vec<WantedUser<'a>>,
    roles: BTreeMap<&'a str, BTreeMap<KeyRange, Access>>,
}

struct WantedUser<'a> {
    name: &'a str,
    password_file: Option<&'a str>,
    roles: BTreeSet<&'a str>,
}

impl<'a> Wanted<'a> {
    fn of(spec: &'a AuthSpec) -> Wanted<'a> {
        let mut users: Vec<WantedUser<'a>> = Vec::new();
        for name in [Some(ROOT), spec.agent_user.as_deref()].into_iter().flatten() {
            if users.iter().all(|user| user.name != name) {
                users.push(WantedUser { name, password_file: None, roles: BTreeSet::from([ROOT]) });
            }
        }
        for declared in &spec.users {
            let roles = declared.roles.iter().map(String::as_str);
            match users.iter_mut().find(|user| user.name == declared.name) {
                Some(user) => {
                    user.password_file = declared.password_file.as_deref();
                    user.roles.extend(roles);
                }
                None => users.push(WantedUser {
                    name: &declared.name,
                    password_file: declared.password_file.as_deref(),
                    roles: roles.collect(),
                }),
            }
        }
        let permissions = |role: &crate::spec::Role| {
            role.permissions.iter().map(|permission| (permission.keys.range(), permission.access)).collect()
        };
        let roles = spec.roles.iter().map(|role| (role.name.as_str(), permissions(role))).collect();
        Wanted { users, roles }
    }
}

fn add_roles(wanted: &Wanted<'_>, seen: &AuthSeen, plan: &mut AuthPlan) {
    // 3.4 has no role of this name until it is made; later ones have it from the start.
    for role in std::iter::once(ROOT).chain(wanted.roles.keys().copied()) {
        if !seen.roles.contains_key(role) {
            plan.steps.push(AuthStep::AddRole { role: role.to_owned() });
        }
    }
    let none = BTreeMap::new();
    for (role, permissions) in &wanted.roles {
        let there = seen.roles.get(*role).unwrap_or(&none);
        for (keys, access) in permissions {
            let grant = match there.get(keys) {
                None => Some(*access),
                // A grant replaces the one for the same keys: what is there stays until the end.
                Some(there) if together(*there, *access) != *there => Some(together(*there, *access)),
                Some(_) => None,
            };
            plan.steps.extend(grant.map(|access| step::grant(role, keys, access)));
        }
    }
}

fn together(one: Access, other: Access) -> Access {
    if one == other { one } else { Access::ReadWrite }
}

fn add_users(wanted: &Wanted<'_>, seen: &AuthSeen, plan: &mut AuthPlan) {
    let none = BTreeSet::new();
    for user in &wanted.users {
        let name = user.name.to_owned();
        let there = seen.users.get(user.name);
        if there.is_none() {
            let password_file = user.password_file.map(ToOwned::to_owned);
            plan.steps.push(AuthStep::AddUser { user: name.clone(), password_file });
        }
        let held = there.map_or(&none, |there| &there.roles);
        for role in user.roles.iter().filter(|role| !held.contains(**role)) {
            plan.steps.push(AuthStep::GrantRole { user: name.clone(), role: (*role).to_owned() });
        }
    }
}

fn set_passwords(spec: &AuthSpec, wanted: &Wanted<'_>, seen: &AuthSeen, plan: &mut AuthPlan) {
    for user in &wanted.users {
        let (Some(there), Some(file)) = (seen.users.get(user.name), user.password_file) else { continue };
        let set = match there.password {
            PasswordSeen::Wrong => true,
            // Whoever is let in from now on is let in with what is declared.
            PasswordSeen::Unknown => spec.enabled && !seen.enabled,
            PasswordSeen::NotDeclared | PasswordSeen::Right => false,
            PasswordSeen::NeverHasOne => {
                let name = quoted(user.name);
                plan.remarks.push(format!(
                    "user {name} was made without a password, and etcd keeps it so: after `etcdctl user delete {}` it is made \
                     anew, with the declared one",
                    user.name
                ));
                false
            }
        };
        if set {
            plan.steps.push(AuthStep::SetPassword { user: user.name.to_owned(), password_file: file.to_owned() });
        }
    }
}

fn take_away(wanted: &Wanted<'_>, seen: &AuthSeen, plan: &mut AuthPlan) {
    for user in &wanted.users {
        let Some(there) = seen.users.get(user.name) else { continue };
        for role in there.roles.iter().filter(|role| !user.roles.contains(role.as_str())) {
            plan.steps.push(AuthStep::RevokeRole { user: user.name.to_owned(), role: role.clone() });
        }
    }
    for (role, permissions) in &wanted.roles {
        let Some(there) = seen.roles.get(*role) else { continue };
        for (keys, held) in there {
            match permissions.get(keys) {
                None => plan.steps.push(step::revoke(role, keys)),
                Some(access) if together(*held, *access) != *access => {
                    plan.steps.push(step::grant(role, keys, *access))
                }
                Some(_) => {}
            }
        }
    }
}

/// Users and roles that nobody declared.
fn undeclared(spec: &AuthSpec, wanted: &Wanted<'_>, seen: &AuthSeen, plan: &mut AuthPlan) {
    let users = seen.users.keys().filter(|name| wanted.users.iter().all(|user| user.name != name.as_str()));
    for user in users {
        match spec.prune {
            true => plan.steps.push(AuthStep::RemoveUser { user: user.clone() }),
            false => plan.remarks.push(format!("user {} is not declared", quoted(user))),
        }
    }
    let roles = seen.roles.keys().filter(|name| *name != ROOT && !wanted.roles.contains_key(name.as_str()));
    for role in roles {
        match spec.prune {
            true => plan.steps.push(AuthStep::RemoveRole { role: role.clone() }),
            false => plan.remarks.push(format!("role {} is not declared", quoted(role))),
        }
    }
}

#[cfg(test)]
mod tests;
