//! Keeps etcd's users and roles as the cluster file declares them.
//!
//! **Rule:** looked at again before anything is changed, and one call for each step; what was done is said in words that hold no
//! secret. Passwords come from files, and go nowhere but to etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use quorate_etcd::client::messages::Permission;
use quorate_etcd::client::{Client, Tried};
use quorate_faults::{Code, Fault};
use quorate_plan::auth::{AuthPlan, AuthSeen, AuthStep, KeyRange, PasswordSeen, UserSeen, plan_auth};
use quorate_plan::spec::{Access, AuthSpec, User};

/// etcd's hash of a password looks at no more than this.
const PASSWORD_BYTES_MAX: usize = 72;

/// What was done about users and roles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Each change, in its words. None: everything was as declared.
    pub done: Vec<String>,
    /// What differs from the file and is left alone.
    pub remarks: Vec<String>,
}

/// Brings users and roles to what is declared. Run it where it runs once at a time: by the leader's agent.
pub async fn reconcile(client: &Client, spec: &AuthSpec) -> Result<Reconciled, Fault> {
    let AuthPlan { steps, remarks } = look(client, spec).await?;
    let mut done = Vec::new();
    for step in &steps {
        if *step == AuthStep::Enable {
            refuse_lock_out(client, spec)?;
        }
        take(client, step).await?;
        done.push(step.to_string());
    }
    Ok(Reconciled { done, remarks })
}

/// What would be done.
pub async fn look(client: &Client, spec: &AuthSpec) -> Result<AuthPlan, Fault> {
    let seen = observe(client, spec).await?;
    let mut plan = plan_auth(spec, &seen);
    for user in &spec.users {
        plan.remarks.extend(user.password_file.as_deref().and_then(exposed));
    }
    Ok(plan)
}

async fn observe(client: &Client, spec: &AuthSpec) -> Result<AuthSeen, Fault> {
    let enabled = client.auth_enabled().await?;
    let mut users = BTreeMap::new();
    for name in client.user_list().await? {
        let declared = spec.users.iter().find(|user| user.name == name);
        let password = match declared.and_then(|user| user.password_file.as_deref()) {
            None => PasswordSeen::NotDeclared,
            // Whether the file can be used is worth knowing before it is needed.
            Some(file) => match (read_password(file)?, enabled) {
                (_, false) => PasswordSeen::Unknown,
                (password, true) => tried(client.try_password(&name, &password).await?),
            },
        };
        let roles: BTreeSet<String> = client.user_roles(&name).await?.into_iter().collect();
        users.insert(name, UserSeen { roles, password });
    }
    let mut roles = BTreeMap::new();
    for name in client.role_list().await? {
        let permissions = client.role_permissions(&name).await?;
        let permissions =
            permissions.into_iter().map(permitted).collect::<Result<BTreeMap<KeyRange, Access>, Fault>>()?;
        roles.insert(name, permissions);
    }
    for User { password_file, .. } in spec.users.iter().filter(|user| !users.contains_key(&user.name)) {
        password_file.as_deref().map(read_password).transpose()?;
    }
    Ok(AuthSeen { enabled, users, roles })
}

fn tried(tried: Tried) -> PasswordSeen {
    match tried {
        Tried::Opens => PasswordSeen::Right,
        Tried::Fails => PasswordSeen::Wrong,
        Tried::HasNone => PasswordSeen::NeverHasOne,
        Tried::NotAsked => PasswordSeen::Unknown,
    }
}

fn permitted(permission: Permission) -> Result<(KeyRange, Access), Fault> {
    let access = match permission.kind {
        0 => Access::Read,
        1 => Access::Write,
        2 => Access::ReadWrite,
        other => {
            let attempt = format!("cannot understand what a role of etcd permits: kind {other}");
            return Err(Fault::new(Code::EtcdRefused, attempt).hint("this etcd is newer than Quorate knows"));
        }
    };
    Ok(((permission.key, permission.range_end), access))
}

fn refuse_lock_out(client: &Client, spec: &AuthSpec) -> Result<(), Fault> {
    let kept = spec.agent_user.as_deref();
    let refuse = |ours: Option<&str>, hint: &str| {
        let name = |name: Option<&str>| name.map_or_else(|| "nobody".to_owned(), |name| format!("`{name}`"));
        let attempt =
            format!("cannot enable auth: the agent asks as {}, and {} is kept for it", name(ours), name(kept));
        Err(Fault::new(Code::AuthLockOut, attempt).hint(hint))
    };
    if let Some(ours) = client.user() {
        let hint = "make `agent.etcd-user` and `auth.agent-user` the same";
        return if Some(ours) == kept { Ok(()) } else { refuse(Some(ours), hint) };
    }
    // Without a password etcd takes the common name of the certificate for the user.
    let shown = client.certificate_file().map(quorate_pki::read_certificates).transpose().map_err(|fault| {
        Fault::new(Code::AuthLockOut, "cannot enable auth: the certificate that the agent shows etcd cannot be read")
            .hint("see to `tls.admin`; without it nobody could change this again")
            .caused_by(fault)
    })?;
    let ours = shown.and_then(|mut chain| if chain.is_empty() { None } else { chain.swap_remove(0).common_name });
    match ours.is_some() && ours.as_deref() == kept {
        true => Ok(()),
        false => refuse(ours.as_deref(), "give `auth.agent-user` the common name in the certificate of `tls.admin`"),
    }
}

async fn take(client: &Client, step: &AuthStep) -> Result<(), Fault> {
    match step {
        AuthStep::AddRole { role } => client.role_add(role).await,
        AuthStep::Grant { role, key, range_end, access } => {
            let kind = match access {
                Access::Read => 0,
                Access::Write => 1,
                Access::ReadWrite => 2,
            };
            client.role_grant(role, Permission { kind, key: key.clone(), range_end: range_end.clone() }).await
        }
        AuthStep::AddUser { user, password_file: None } => client.user_add(user, None).await,
        AuthStep::AddUser { user, password_file: Some(file) } => {
            client.user_add(user, Some(&read_password(file)?)).await
        }
        AuthStep::GrantRole { user, role } => client.user_grant(user, role).await,
        AuthStep::SetPassword { user, password_file } => {
            client.user_password(user, &read_password(password_file)?).await
        }
        AuthStep::RevokeRole { user, role } => client.user_revoke(user, role).await,
        AuthStep::Revoke { role, key, range_end } => client.role_revoke(role, key.clone(), range_end.clone()).await,
        AuthStep::RemoveUser { user } => client.user_remove(user).await,
        AuthStep::RemoveRole { role } => client.role_remove(role).await,
        AuthStep::Enable => client.auth_enable().await,
    }
}

/// The password alone, without the end of its line.
fn read_password(file: &str) -> Result<String, Fault> {
    let refuse = |why: &str| {
        Fault::new(Code::PasswordFile, format!("cannot use the password file `{file}`: {why}"))
            .hint("write the password alone into it, readable only for the agent's user")
    };
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| refuse("it cannot be opened").caused_by(error))?;
    // One byte more than the longest line tells a longer one.
    let limit = u64::try_from(PASSWORD_BYTES_MAX + 3).unwrap_or(u64::MAX);
    opened.take(limit).read_to_end(&mut bytes).map_err(|error| refuse("it cannot be read").caused_by(error))?;
    let text = String::from_utf8(bytes).map_err(|_| refuse("it is not text"))?;
    let password = text.trim_end_matches(['\n', '\r']);
    match password.len() {
        0 => Err(refuse("it is empty")),
        1..=PASSWORD_BYTES_MAX => Ok(password.to_owned()),
        _ => Err(refuse("it holds more than 72 bytes, and etcd looks at no more")),
    }
}

/// A remark about a file that others can read.
fn exposed(file: &str) -> Option<String> {
    let mode = std::fs::metadata(Path::new(file)).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| format!("everyone on this machine can read the password file `{file}`"))
}
