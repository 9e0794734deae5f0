//! Sessions as leases.
//!
//! **Rule:** a session depends on its time alone, on no health check, as a lease of etcd does.

use std::time::Duration;

use quorate_faults::Result;
use quorate_kv::LeaseId;
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::Consul;
use crate::errors::Attempt;

/// Consul grants sessions of 10 s to a day.
const TTL_MIN: Duration = Duration::from_secs(10);
const TTL_MAX: Duration = Duration::from_secs(86_400);

#[derive(Debug, Deserialize)]
struct Created {
    #[serde(rename = "ID")]
    id: String,
}

#[derive(Debug, Deserialize)]
struct Session {
    #[serde(rename = "TTL")]
    ttl: String,
}

impl Consul {
    pub(crate) async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration)> {
        let attempt = Attempt::GRANT;
        let seconds = ttl.clamp(TTL_MIN, TTL_MAX).as_millis().div_ceil(1000);
        let body = json!({
            "Name": "quorate",
            "TTL": format!("{seconds}s"),
            "Behavior": "delete",
            "LockDelay": format!("{}ms", self.lock_delay.as_millis()),
            "Checks": [],
            "NodeChecks": [],
        });
        let answer = self.web.put(attempt, "session/create", Some(body.to_string().into_bytes())).await?;
        if answer.status != StatusCode::OK {
            return Err(attempt.unreadable(self.place(), "it knows no sessions"));
        }
        let created: Created = answer.json(attempt, self.place())?;
        if !plain(&created.id) {
            return Err(attempt.unreadable(self.place(), "a session without a usable id"));
        }
        let seconds = u64::try_from(seconds).unwrap_or(u64::MAX);
        Ok((LeaseId(created.id), Duration::from_secs(seconds)))
    }

    pub(crate) async fn renew(&self, lease: &LeaseId) -> Result<Option<Duration>> {
        let attempt = Attempt::RENEW;
        if !plain(&lease.0) {
            return Ok(None);
        }
        let answer = self.web.put(attempt, &format!("session/renew/{lease}"), None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            // A stranger's 404 would end a lease that lives.
            return match String::from_utf8_lossy(&answer.body).contains("not found") {
                true => Ok(None),
                false => Err(attempt.unreadable(self.place(), "it knows no sessions")),
            };
        }
        let sessions: Vec<Session> = answer.json(attempt, self.place())?;
        let ttl = sessions.first().and_then(|session| go_duration(&session.ttl));
        ttl.map(Some).ok_or_else(|| attempt.unreadable(self.place(), "a session without a time"))
    }

    pub(crate) async fn end(&self, lease: &LeaseId) -> Result<()> {
        if !plain(&lease.0) {
            return Ok(());
        }
        self.web.put(Attempt::END, &format!("session/destroy/{lease}"), None).await.map(|_| ())
    }
}

/// Whether an id can stand in a URL.
pub(super) fn plain(id: &str) -> bool {
    !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Reads `10s`, `1m30s`, `24h0m0s`, `500ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u32 = rest[..digits].parse().ok()?;
        let unit = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let one = match &rest[digits..unit] {
            "h" => Duration::from_secs(3600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            _ => return None,
        };
        total = total.checked_add(one.checked_mul(number)?)?;
        rest = &rest[unit..];
    }
    (!total.is_zero()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_consul_writes_them() {
        assert_eq!(go_duration("10s"), Some(Duration::from_secs(10)));
        assert_eq!(go_duration("1m30s"), Some(Duration::from_secs(90)));
        assert_eq!(go_duration("24h0m0s"), Some(TTL_MAX));
        assert_eq!(go_duration("500ms"), Some(Duration::from_millis(500)));
        for text in ["", "10", "s", "-1s", "1.5s", "1d", "99999999999s", "0s", "1\u{e9}", "s1"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }

    #[test]
    fn ids_that_could_lead_elsewhere_are_not_used() {
        assert!(plain("3a89caf8-9ad0-2ce3-4819-d70bc67a1c6a"));
        for id in ["", "../kv", "a/b", "a?b", &"x".repeat(65)] {
            assert!(!plain(id), "{id}");
        }
    }
}
