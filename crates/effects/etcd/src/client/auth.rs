//! Logging in by user and password, for clusters that ask.
//!
//! **Rule:** a password is never printed, and only ever sent to the endpoints that were given.

use std::fmt;
use std::path::Path;

use quorate_faults::Fault;

use super::Client;
use super::call::Procedure;
use super::errors::{self, Failure};
use super::messages::{AuthenticateRequest, AuthenticateResponse};

const AUTHENTICATE: Procedure = Procedure::read("/etcdserverpb.Auth/Authenticate", "log in");

/// A user and its password.
#[derive(Clone)]
pub struct Credentials {
    /// The user.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Client {
    /// The user as which this client logs in. `None`: its certificate, if it has one, says who it is.
    pub fn user(&self) -> Option<&str> {
        self.shared.credentials.as_ref().map(|credentials| credentials.name.as_str())
    }

    /// The file of the certificate that it shows, if it shows one.
    pub fn certificate_file(&self) -> Option<&Path> {
        self.shared.certificate.as_deref()
    }

    pub(super) fn has_credentials(&self) -> bool {
        self.shared.credentials.is_some()
    }

    /// Gets a token for our credentials; does nothing without any.
    pub(super) async fn log_in(&self) -> Result<(), Fault> {
        let Some(credentials) = &self.shared.credentials else { return Ok(()) };
        let request = AuthenticateRequest { name: credentials.name.clone(), password: credentials.password.clone() };
        // A stale token must not travel with the request for a fresh one.
        *self.token() = None;
        match self.call_with_token::<_, AuthenticateResponse>(AUTHENTICATE, request).await {
            Ok(answer) => *self.token() = Some(answer.token),
            // A cluster without users lets everybody in, so there is nothing to log in to.
            Err(failures) if failures.last().is_some_and(Failure::is_auth_not_enabled) => {}
            Err(failures) => return Err(errors::fault(AUTHENTICATE, failures)),
        }
        Ok(())
    }
}
