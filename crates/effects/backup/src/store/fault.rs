//! What an answer of a store means, in an operator's words.
//!
//! **Rule:** no text leaves here that carries a query of a URL, a signature or a secret of ours.

use std::error::Error as _;

use object_store::Error;
use quorate_faults::{Code, Fault};

/// Longest text of a cause; servers answer with whole pages.
const CAUSE_MAX: usize = 400;

/// Whether the same may succeed later without anybody's doing.
pub fn is_temporary(fault: &Fault) -> bool {
    fault.code() == Code::StoreUnreachable
}

/// Why an object was not made.
pub(super) enum Refusal {
    /// One of that name is there.
    Exists,
    /// It may have been made or not; it is worth another try.
    Later,
    /// No use in trying again.
    Never,
}

pub(super) fn refusal(error: &Error) -> Refusal {
    let text = whole(error);
    match error {
        // Two requests met; who has won is told to the next one.
        Error::AlreadyExists { .. } if text.contains("ConditionalRequestConflict") => Refusal::Later,
        Error::AlreadyExists { .. } | Error::Precondition { .. } if code(error, &text) != Code::StoreLocked => {
            Refusal::Exists
        }
        _ if code(error, &text) == Code::StoreUnreachable => Refusal::Later,
        _ => Refusal::Never,
    }
}

/// Whether it is the object that is not there, and not the bucket around it.
pub(super) fn is_missing_object(error: &Error) -> bool {
    matches!(error, Error::NotFound { .. }) && code(error, &whole(error)) != Code::BucketAbsent
}

/// An answer as a fault.
pub(super) fn fault(attempt: &str, url: &str, error: &Error, secrets: &[String]) -> Fault {
    let text = whole(error);
    let code = code(error, &text);
    let hint = match code {
        Code::StoreDenied => {
            "check the credentials, and what they are allowed to do; files that hold them are read again when they change"
        }
        Code::BucketAbsent => "make the bucket first, or correct the URL; Quorate makes none",
        Code::StoreLocked => "wait until the retention of the object has passed",
        Code::CreateUnsupported => "use a store that knows `If-None-Match: *` for new objects",
        _ if text.contains("scheme is not allowed") => {
            "this endpoint is plain http: set AWS_ALLOW_HTTP=true (or AZURE_ALLOW_HTTP) if that is meant"
        }
        _ => "see the cause; nothing that was there before has been changed",
    };
    Fault::new(code, format!("{attempt} `{url}`")).hint(hint).caused_by(clean(&text, secrets))
}

/// The cause of a fault, as text.
pub(super) fn cause_of(fault: &Fault) -> String {
    fault.source().map_or_else(|| fault.to_string(), ToString::to_string)
}

/// All that an error and its causes say.
fn whole(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = next.source();
    }
    text
}

fn code(error: &Error, text: &str) -> Code {
    const LOCKED: [&str; 9] = [
        "object lock",
        "Object Lock",
        "ObjectLocked",
        "WORM",
        "BlobImmutable",
        "retentionPolicyNotMet",
        "retention policy",
        "Event-Based hold",
        "Temporary hold",
    ];
    const ABSENT: [&str; 5] =
        ["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "bucket does not exist", "AccountNotFound"];
    const DENIED: [&str; 9] = [
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AuthenticationFailed",
        "AuthorizationFailure",
        "AuthorizationPermissionMismatch",
        "ExpiredToken",
        "InvalidToken",
        "status code: 401",
        "status code: 403",
    ];
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&LOCKED) {
        return Code::StoreLocked;
    }
    if says(&ABSENT) {
        return Code::BucketAbsent;
    }
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => Code::StoreDenied,
        _ if says(&DENIED) => Code::StoreDenied,
        Error::NotImplemented { .. } => Code::CreateUnsupported,
        _ if says(&["status code: 501", "<Code>NotImplemented"]) => Code::CreateUnsupported,
        _ => Code::StoreUnreachable,
    }
}

/// The text without queries, known secrets and what else a server repeats of a request.
pub(super) fn clean(text: &str, secrets: &[String]) -> String {
    let mut text = short(text);
    for secret in secrets {
        text = text.replace(secret.as_str(), "…");
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('?') {
        let (before, query) = rest.split_at(at);
        out.push_str(before);
        let end = query.find(|c: char| c.is_whitespace() || matches!(c, ')' | '"' | '\'' | '<' | '>' | '`'));
        let (query, after) = query.split_at(end.unwrap_or(query.len()));
        out.push_str(if query.contains('=') { "?…" } else { query });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// An answer in XML is cut down to its code and message: the rest repeats the request, key and signature included.
fn short(text: &str) -> String {
    let part = |name: &str| {
        let (_, after) = text.split_once(&format!("<{name}>"))?;
        after.split_once(&format!("</{name}>")).map(|(inside, _)| inside)
    };
    let text = match (part("Code"), text.find("<?xml").or_else(|| text.find("<Error"))) {
        (Some(code), Some(at)) => {
            let message = part("Message").map_or_else(String::new, |message| format!(" ({message})"));
            let said = format!("{code}{message}");
            // What the store says is worth more than what it was asked.
            format!("{}{said}", within(&text[..at], CAUSE_MAX.saturating_sub(said.chars().count())))
        }
        _ => text.to_owned(),
    };
    within(&text, CAUSE_MAX).trim_end().replace('\n', " ")
}

/// The text, or as much of its beginning as there is room for with a mark behind it.
fn within(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let kept: String = text.chars().take(limit.saturating_sub(2)).collect();
    format!("{kept}… ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_query_and_no_secret_is_repeated() {
        let secrets = ["topsecret".to_owned()];
        let text = "Error performing GET http://h/b/o?sig=abc&X-Amz-Signature=def in 3s - Client error (topsecret)";
        let said = clean(text, &secrets);
        assert_eq!(said, "Error performing GET http://h/b/o?… in 3s - Client error (…)");
        assert_eq!(clean("really? yes", &secrets), "really? yes");
    }

    #[test]
    fn of_an_answer_in_xml_code_and_message_are_kept() {
        let text = "status code: 403: <?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code><Message>no</Message>\
                    <AWSAccessKeyId>AKIA</AWSAccessKeyId><SignatureProvided>5af</SignatureProvided></Error>";
        assert_eq!(clean(text, &[]), "status code: 403: SignatureDoesNotMatch (no)");
        let long = format!("asked for {}: {text}", "a".repeat(2 * CAUSE_MAX));
        let said = clean(&long, &[]);
        assert!(said.starts_with("asked for aaa") && said.ends_with("a… SignatureDoesNotMatch (no)"), "{said}");
    }
}
