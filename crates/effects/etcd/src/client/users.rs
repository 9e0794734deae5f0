//! The users and roles of a cluster, and changing them.
//!
//! **Rule:** a change is sent once; a password is sent to the endpoints that were given, and shown nowhere.

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::errors::{self, Failure};
use super::messages::{
    AuthStatusResponse, AuthenticateRequest, AuthenticateResponse, DoneResponse, NameRequest, NamesResponse,
    NoArguments, Permission, RoleGetResponse, RoleGrantRequest, RoleRevokeRequest, UserAddOptions, UserAddRequest,
    UserRoleRequest,
};

const AUTH_STATUS: Procedure = Procedure::read("/etcdserverpb.Auth/AuthStatus", "see whether auth is enabled");
const AUTH_ENABLE: Procedure = Procedure::write("/etcdserverpb.Auth/AuthEnable", "enable auth");
const AUTHENTICATE: Procedure = Procedure::read("/etcdserverpb.Auth/Authenticate", "try a password");
const USER_LIST: Procedure = Procedure::read("/etcdserverpb.Auth/UserList", "list users");
const USER_GET: Procedure = Procedure::read("/etcdserverpb.Auth/UserGet", "see the roles of a user");
const USER_ADD: Procedure = Procedure::write("/etcdserverpb.Auth/UserAdd", "add a user");
const USER_DELETE: Procedure = Procedure::write("/etcdserverpb.Auth/UserDelete", "remove a user");
const USER_PASSWORD: Procedure = Procedure::write("/etcdserverpb.Auth/UserChangePassword", "set a password");
const USER_GRANT: Procedure = Procedure::write("/etcdserverpb.Auth/UserGrantRole", "give a user a role");
const USER_REVOKE: Procedure = Procedure::write("/etcdserverpb.Auth/UserRevokeRole", "take a role from a user");
const ROLE_LIST: Procedure = Procedure::read("/etcdserverpb.Auth/RoleList", "list roles");
const ROLE_GET: Procedure = Procedure::read("/etcdserverpb.Auth/RoleGet", "see what a role permits");
const ROLE_ADD: Procedure = Procedure::write("/etcdserverpb.Auth/RoleAdd", "add a role");
const ROLE_DELETE: Procedure = Procedure::write("/etcdserverpb.Auth/RoleDelete", "remove a role");
const ROLE_GRANT: Procedure = Procedure::write("/etcdserverpb.Auth/RoleGrantPermission", "let a role do something");
const ROLE_REVOKE: Procedure = Procedure::write("/etcdserverpb.Auth/RoleRevokePermission", "take from a role");

/// A user that no cluster has, to ask whether anybody is asked at all.
const NOBODY: &str = "quorate-asks-whether-auth-is-enabled";

/// What etcd says to a user and a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// They open.
    Opens,
    /// They do not.
    Fails,
    /// The user is one without password.
    HasNone,
    /// Nobody is asked: auth is not enabled.
    NotAsked,
}

impl Client {
    /// Whether the cluster asks who somebody is. 3.4 cannot be asked this, so there a login is tried.
    pub async fn auth_enabled(&self) -> Result<bool, Fault> {
        match self.call_with_token::<_, AuthStatusResponse>(AUTH_STATUS, NoArguments {}).await {
            Ok(answer) => Ok(answer.enabled),
            Err(failures) if failures.last().is_some_and(Failure::is_answer) => {
                Ok(self.try_password(NOBODY, "-").await? != Tried::NotAsked)
            }
            Err(failures) => Err(errors::fault(AUTH_STATUS, failures)),
        }
    }

    /// From now on everyone is asked. etcd wants a user `root` with the role `root` first.
    pub async fn auth_enable(&self) -> Result<(), Fault> {
        self.call::<_, DoneResponse>(AUTH_ENABLE, NoArguments {}).await.map(|_| ())
    }

    /// Whether a user and a password open. Our own token stays as it is.
    pub async fn try_password(&self, name: &str, password: &str) -> Result<Tried, Fault> {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        match self.call_with_token::<_, AuthenticateResponse>(AUTHENTICATE, request).await {
            Ok(_) => Ok(Tried::Opens),
            Err(failures) => match failures.last() {
                Some(last) if last.is_auth_not_enabled() => Ok(Tried::NotAsked),
                Some(last) if last.is_no_password_user() => Ok(Tried::HasNone),
                Some(last) if last.is_failed_login() => Ok(Tried::Fails),
                Some(_) | None => Err(errors::fault(AUTHENTICATE, failures)),
            },
        }
    }

    /// The names of all users.
    pub async fn user_list(&self) -> Result<Vec<String>, Fault> {
        Ok(self.call::<_, NamesResponse>(USER_LIST, NoArguments {}).await?.names)
    }

    /// The roles of a user.
    pub async fn user_roles(&self, name: &str) -> Result<Vec<String>, Fault> {
        Ok(self.call::<_, NamesResponse>(USER_GET, NameRequest { name: name.to_owned() }).await?.names)
    }

    /// Makes a user; without a password only a certificate lets it in, for ever.
    pub async fn user_add(&self, name: &str, password: Option<&str>) -> Result<(), Fault> {
        let request = UserAddRequest {
            name: name.to_owned(),
            password: password.unwrap_or_default().to_owned(),
            options: Some(UserAddOptions { no_password: password.is_none() }),
        };
        self.call::<_, DoneResponse>(USER_ADD, request).await.map(|_| ())
    }

    /// Removes a user.
    pub async fn user_remove(&self, name: &str) -> Result<(), Fault> {
        self.call::<_, DoneResponse>(USER_DELETE, NameRequest { name: name.to_owned() }).await.map(|_| ())
    }

    /// Sets a user's password.
    pub async fn user_password(&self, name: &str, password: &str) -> Result<(), Fault> {
        let request = AuthenticateRequest { name: name.to_owned(), password: password.to_owned() };
        self.call::<_, DoneResponse>(USER_PASSWORD, request).await.map(|_| ())
    }

    /// Gives a user a role.
    pub async fn user_grant(&self, user: &str, role: &str) -> Result<(), Fault> {
        let request = UserRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.call::<_, DoneResponse>(USER_GRANT, request).await.map(|_| ())
    }

    /// Takes a role from a user.
    pub async fn user_revoke(&self, user: &str, role: &str) -> Result<(), Fault> {
        let request = UserRoleRequest { user: user.to_owned(), role: role.to_owned() };
        self.call::<_, DoneResponse>(USER_REVOKE, request).await.map(|_| ())
    }

    /// The names of all roles.
    pub async fn role_list(&self) -> Result<Vec<String>, Fault> {
        Ok(self.call::<_, NamesResponse>(ROLE_LIST, NoArguments {}).await?.names)
    }

    /// What a role permits.
    pub async fn role_permissions(&self, name: &str) -> Result<Vec<Permission>, Fault> {
        Ok(self.call::<_, RoleGetResponse>(ROLE_GET, NameRequest { name: name.to_owned() }).await?.permissions)
    }

    /// Makes a role that permits nothing yet.
    pub async fn role_add(&self, name: &str) -> Result<(), Fault> {
        self.call::<_, DoneResponse>(ROLE_ADD, NameRequest { name: name.to_owned() }).await.map(|_| ())
    }

    /// Removes a role.
    pub async fn role_remove(&self, name: &str) -> Result<(), Fault> {
        self.call::<_, DoneResponse>(ROLE_DELETE, NameRequest { name: name.to_owned() }).await.map(|_| ())
    }

    /// Lets a role do something with some keys, instead of what it could do with the same ones.
    pub async fn role_grant(&self, name: &str, permission: Permission) -> Result<(), Fault> {
        let request = RoleGrantRequest { name: name.to_owned(), permission: Some(permission) };
        self.call::<_, DoneResponse>(ROLE_GRANT, request).await.map(|_| ())
    }

    /// Takes a permission from a role.
    pub async fn role_revoke(&self, role: &str, key: Vec<u8>, range_end: Vec<u8>) -> Result<(), Fault> {
        let request = RoleRevokeRequest { role: role.to_owned(), key, range_end };
        self.call::<_, DoneResponse>(ROLE_REVOKE, request).await.map(|_| ())
    }
}
