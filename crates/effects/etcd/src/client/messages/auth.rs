//! Logging in, and the users and roles of a cluster. Neither password nor token is ever printed.

use std::fmt;

use prost::Message;

use super::ResponseHeader;

/// Asks for a token.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its password.
    #[prost(string, tag = "2")]
    pub password: String,
}

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A token.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct AuthenticateResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The token.
    #[prost(string, tag = "2")]
    pub token: String,
}

impl fmt::Debug for AuthenticateResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateResponse").field("header", &self.header).finish_non_exhaustive()
    }
}

/// Asks for nothing more: the request of every call without arguments.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct NoArguments {}

/// Says that it was done.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DoneResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
}

/// Whether users are asked who they are.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct AuthStatusResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Whether they are.
    #[prost(bool, tag = "2")]
    pub enabled: bool,
    /// Counts the changes of users and roles.
    #[prost(uint64, tag = "3")]
    pub auth_revision: u64,
}

/// How a user is made.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct UserAddOptions {
    /// Without a password, for ever: only a certificate lets the user in.
    #[prost(bool, tag = "1")]
    pub no_password: bool,
}

/// Makes a user.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct UserAddRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its password.
    #[prost(string, tag = "2")]
    pub password: String,
    /// How it is made.
    #[prost(message, optional, tag = "3")]
    pub options: Option<UserAddOptions>,
}

impl fmt::Debug for UserAddRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserAddRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Names a user or a role.
#[derive(Clone, PartialEq, Message)]
pub struct NameRequest {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// Names a user, or a role, and a role to be granted or revoked.
#[derive(Clone, PartialEq, Message)]
pub struct UserRoleRequest {
    /// The user.
    #[prost(string, tag = "1")]
    pub user: String,
    /// The role.
    #[prost(string, tag = "2")]
    pub role: String,
}

/// The names that were asked for: users, roles, or the roles of a user.
#[derive(Clone, PartialEq, Message)]
pub struct NamesResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// The names.
    #[prost(string, repeated, tag = "2")]
    pub names: Vec<String>,
}

/// What may be done with which keys.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Permission {
    /// 0: read, 1: write, 2: both.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    /// The first key.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// The first key that is not meant; empty: one key alone; one zero byte: to the last.
    #[prost(bytes = "vec", tag = "3")]
    pub range_end: Vec<u8>,
}

/// What a role permits.
#[derive(Clone, PartialEq, Message)]
pub struct RoleGetResponse {
    /// Who answered, and when.
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// All of it.
    #[prost(message, repeated, tag = "2")]
    pub permissions: Vec<Permission>,
}

/// Lets a role do something.
#[derive(Clone, PartialEq, Message)]
pub struct RoleGrantRequest {
    /// The role.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What.
    #[prost(message, optional, tag = "2")]
    pub permission: Option<Permission>,
}

/// Takes a permission from a role.
#[derive(Clone, PartialEq, Message)]
pub struct RoleRevokeRequest {
    /// The role.
    #[prost(string, tag = "1")]
    pub role: String,
    /// The first key.
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    /// As in [`Permission`].
    #[prost(bytes = "vec", tag = "3")]
    pub range_end: Vec<u8>,
}
