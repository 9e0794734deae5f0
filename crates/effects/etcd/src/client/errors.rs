//! Says in the operator's words why a call failed, at which endpoint, and what to do.
//!
//! **Rule:** "did not answer" (Q0601) and "said no" (Q0602) are never confused.

use std::error::Error;
use std::time::Duration;

use quorate_faults::{Code as FaultCode, Fault};
use tonic::{Code, Status};

use super::call::{Procedure, never_sent};

/// How etcd puts off a change of its members.
const UNHEALTHY: &str = "etcdserver: unhealthy cluster";

/// What one endpoint did with one request.
#[derive(Debug)]
pub(super) struct Failure {
    url: String,
    kind: Kind,
    said: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// No connection came about: the request was never sent.
    NotSent,
    /// The connection ended after the request was, or may have been, sent.
    Lost,
    /// Nothing came back in time.
    Silent,
    /// etcd answered that it cannot serve now (no leader, stopping).
    NotNow,
    /// etcd answered no.
    Refused(Code),
}

impl Failure {
    pub(super) fn answered(url: &str, status: Status) -> Failure {
        let from_etcd = status.message().contains("etcdserver:") || status.message().contains("auth:");
        let kind = match status.code() {
            Code::Unavailable if never_sent(&status) => Kind::NotSent,
            Code::Unavailable if from_etcd => Kind::NotNow,
            Code::DeadlineExceeded | Code::Cancelled => Kind::Silent,
            Code::Unavailable => Kind::Lost,
            // An etcd that ends may cut an answer off before its last word.
            Code::Unknown | Code::Internal
                if !from_etcd && (status.source().is_some() || status.message().starts_with("protocol error:")) =>
            {
                Kind::Lost
            }
            code => Kind::Refused(code),
        };
        let said = match kind {
            Kind::NotSent | Kind::Lost | Kind::Silent => root_cause(&status),
            Kind::NotNow | Kind::Refused(_) => status.message().to_owned(),
        };
        Failure { url: url.to_owned(), kind, said }
    }

    pub(super) fn silent(url: &str, limit: Duration) -> Failure {
        Failure { url: url.to_owned(), kind: Kind::Silent, said: format!("no answer within {limit:?}") }
    }

    /// A stream that ended before its time.
    pub(super) fn ended(url: &str) -> Failure {
        Failure { url: url.to_owned(), kind: Kind::Lost, said: "the stream ended before its time".to_owned() }
    }

    /// A no that came inside a message of a stream.
    pub(super) fn refused(url: &str, said: &str) -> Failure {
        let code = if said.contains("permission denied") { Code::PermissionDenied } else { Code::Unknown };
        let said = if said.is_empty() { "etcd gave no reason" } else { said };
        Failure { url: url.to_owned(), kind: Kind::Refused(code), said: said.to_owned() }
    }

    /// Whether the same request may go to another endpoint.
    pub(super) fn may_ask_another(&self, procedure: Procedure) -> bool {
        match self.kind {
            Kind::NotSent => true,
            Kind::Lost | Kind::Silent | Kind::NotNow => procedure.read_only,
            Kind::Refused(_) => false,
        }
    }

    /// Whether the same request may go to the same endpoint once more.
    pub(super) fn may_ask_again(&self, procedure: Procedure) -> bool {
        self.kind == Kind::Lost && procedure.read_only
    }

    /// Whether etcd wants a fresh token: ours has expired, users were changed since it was given, or auth was enabled since.
    pub(super) fn is_stale_token(&self) -> bool {
        let words = ["invalid auth token", "revision of auth store is old", "etcdserver: user name is empty"];
        let refused = matches!(self.kind, Kind::Refused(_));
        refused && words.iter().any(|words| self.said.contains(words))
    }

    /// Whether etcd itself answered, whatever it said.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.kind, Kind::Refused(_))
    }

    /// Whether a password was not the user's, or there is no such user.
    pub(super) fn is_failed_login(&self) -> bool {
        self.is_answer() && self.said.contains("authentication failed")
    }

    /// Whether a password was tried for a user that was made without one.
    pub(super) fn is_no_password_user(&self) -> bool {
        self.is_failed_login() && self.said.contains("no password user")
    }

    /// The same for streams, where older servers call a stale token a lack of permission.
    pub(super) fn may_be_stale_token(&self) -> bool {
        self.is_stale_token() || self.kind == Kind::Refused(Code::PermissionDenied)
    }

    /// Whether etcd, and nobody on the way, turned the request down for who asked.
    pub(super) fn is_about_user(&self) -> bool {
        let words =
            ["etcdserver: user name is empty", "etcdserver: permission denied", "etcdserver: invalid auth token"];
        let refused = matches!(self.kind, Kind::Refused(_));
        refused && (self.is_stale_token() || words.iter().any(|words| self.said.contains(words)))
    }

    /// Whether etcd says that it knows no users at all.
    pub(super) fn is_auth_not_enabled(&self) -> bool {
        self.said.contains("authentication is not enabled")
    }
}

/// The deepest cause: outer layers only say "transport error".
fn root_cause(status: &Status) -> String {
    let mut deepest: Option<&(dyn Error + 'static)> = status.source();
    while let Some(next) = deepest.and_then(Error::source) {
        deepest = Some(next);
    }
    deepest.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// The fault for a call that nobody answered, or that was turned down.
pub(super) fn fault(procedure: Procedure, failures: Vec<Failure>) -> Fault {
    let attempt = procedure.attempt;
    let Some(last) = failures.last() else {
        return Fault::new(FaultCode::Internal, format!("cannot {attempt}: no endpoint was tried"));
    };
    if let Kind::Refused(code) = last.kind {
        return Fault::new(FaultCode::EtcdRefused, format!("etcd at `{}` refused to {attempt}", last.url))
            .hint(refusal_hint(code, &last.said))
            .caused_by(last.said.clone());
    }
    let urls: Vec<String> = failures.iter().map(|failure| format!("`{}`", failure.url)).collect();
    let mut hint = silence_hint(last).to_owned();
    if last.said.contains(UNHEALTHY) {
        hint =
            "nothing was changed: etcd changes its members only while most of them have been connected for 5 s; start \
                those that are missing, or try again"
                .to_owned();
    } else if !procedure.read_only && matches!(last.kind, Kind::Lost | Kind::Silent | Kind::NotNow) {
        hint = format!("it is not known whether the change took effect: look before you repeat it; {hint}");
    }
    let cause = match failures.as_slice() {
        [only] => only.said.clone(),
        several => {
            let lines: Vec<String> = several.iter().map(|one| format!("{}: {}", one.url, one.said)).collect();
            lines.join("\n")
        }
    };
    let what = if last.kind == Kind::NotNow { "cannot serve now" } else { "did not answer" };
    Fault::new(FaultCode::EtcdUnreachable, format!("cannot {attempt}: etcd at {} {what}", urls.join(", ")))
        .hint(hint)
        .caused_by(cause)
}

fn refusal_hint(code: Code, said: &str) -> &'static str {
    let about_login = ["user name is empty", "authentication failed", "invalid auth token"];
    match code {
        _ if about_login.iter().any(|words| said.contains(words)) => {
            "this cluster asks for a user and password; give those of a user that may do this"
        }
        Code::PermissionDenied => "this user may not do that; grant it a role that may, or use another user",
        Code::ResourceExhausted => "the cluster is out of space or busy; see `etcdctl alarm list`",
        Code::Unimplemented => "this endpoint does not know the call: it is not an etcd v3 client port, or too old",
        _ => "see the cause, which is etcd's own answer",
    }
}

fn silence_hint(failure: &Failure) -> &'static str {
    let lower = failure.said.to_lowercase();
    let hung_up = ["frame", "protocol error", "connection reset", "connection closed", "broken pipe", "unexpected end"];
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if says(&["unknownissuer"]) {
        "the server's certificate is not signed by a trusted CA; give the CA that signed it"
    } else if says(&["notvalidforname", "not valid for name"]) {
        "the server's certificate is made out to another name; use the host name that is in it"
    } else if says(&["certificaterequired", "certificate required", "badcertificate", "unknownca", "decrypterror"]) {
        "the server wants a client certificate that it trusts; give certificate and key signed by its client CA"
    } else if says(&["expired"]) {
        "a certificate has expired, or this machine's clock is wrong"
    } else if says(&["invalidcontenttype", "corrupt message", "handshake eof"]) {
        "the server does not seem to speak TLS there; try `http://`"
    } else if says(&hung_up) && failure.url.starts_with("https") {
        // A server that turns down a client certificate often closes before its reason arrives.
        "the server hung up; it likely wants a client certificate that it trusts, signed by its client CA"
    } else if says(&hung_up) {
        "the server hung up; if it speaks TLS there, use `https://`"
    } else if says(&["dns", "lookup", "name or service"]) {
        "the host name does not resolve; check its spelling"
    } else if says(&["no leader", "request timed out"]) {
        "the cluster has no quorum now; start the missing members"
    } else {
        "check that etcd is running, that the URL is its client URL, and that nothing blocks the way"
    }
}
