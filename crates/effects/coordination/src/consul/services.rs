//! Services of the agent, each with a check that lapses unless it is renewed.
//!
//! **Rule:** an instance is as well as the worst of its checks, those of its node among them.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_faults::{Code, Result};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Consul;
use crate::errors::Attempt;
use crate::registry::{Health, Instance, Seen, Wanted};

/// Where an instance's own id stands in its meta data.
const META_ID: &str = "quorate-id";

/// When Consul forgets an instance that nobody keeps; a minute is the least it takes.
const FORGET_AFTER: &str = "1m";

/// The pause before another attempt at an agent that does not answer.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Found {
    node: Node,
    service: Service,
    #[serde(default)]
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Node {
    #[serde(default)]
    address: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Service {
    #[serde(rename = "ID")]
    id: String,
    #[serde(default)]
    address: String,
    #[serde(default)]
    port: u16,
    #[serde(default)]
    meta: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Check {
    status: String,
    #[serde(default)]
    output: String,
}

impl Consul {
    /// Registers an instance with the agent; one of the same id is replaced.
    pub(crate) async fn register(
        &self,
        service: &str,
        instance: &Instance,
        wanted: &Wanted,
        ttl: Duration,
    ) -> Result<()> {
        let mut meta = instance.meta.clone();
        meta.insert(META_ID.to_owned(), instance.id.clone());
        let body = json!({
            "ID": agent_id(service, instance),
            "Name": service,
            "Address": instance.address,
            "Port": instance.port,
            "Meta": meta,
            "Check": {
                "TTL": format!("{}ms", ttl.as_millis()),
                "Status": wanted.health.as_str(),
                "DeregisterCriticalServiceAfter": FORGET_AFTER,
            },
        });
        let body = Some(body.to_string().into_bytes());
        let answer = self.web.put(Attempt::REGISTER, "agent/service/register", body).await?;
        match answer.status {
            StatusCode::OK => self.say(service, instance, wanted).await.map(|_| ()),
            _ => Err(Attempt::REGISTER.unreadable(self.place(), "it knows no services")),
        }
    }

    /// Renews the check, and says how well the instance is. Returns whether the agent knows it.
    async fn say(&self, service: &str, instance: &Instance, wanted: &Wanted) -> Result<bool> {
        let path = format!("agent/check/update/service:{}", agent_id(service, instance));
        let body = json!({ "Status": wanted.health.as_str(), "Output": wanted.note });
        let answer = self.web.put(Attempt::REGISTER, &path, Some(body.to_string().into_bytes())).await?;
        Ok(answer.status == StatusCode::OK)
    }

    /// Renews at every third of the time, and registers again with an agent that has forgotten.
    pub(crate) async fn keep_service(
        &self,
        service: String,
        instance: Instance,
        mut wanted: watch::Receiver<Wanted>,
        ttl: Duration,
        registered: watch::Sender<bool>,
    ) {
        let mut pause = ttl / 3;
        loop {
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { return },
                () = sleep(pause) => {}
            }
            let now = wanted.borrow_and_update().clone();
            let said = match self.say(&service, &instance, &now).await {
                Ok(true) => Ok(()),
                Ok(false) => self.register(&service, &instance, &now, ttl).await,
                Err(fault) => Err(fault),
            };
            pause = if said.is_ok() { ttl / 3 } else { PAUSE.min(ttl / 3) };
            // No answer says nothing about what the agent knows.
            match said {
                Ok(()) => registered.send_replace(true),
                Err(fault) if fault.code() == Code::CoordinationSilent => continue,
                Err(_) => registered.send_replace(false),
            };
        }
    }

    /// Takes an instance out of the agent. One that is not there is as good as taken out.
    pub(crate) async fn deregister(&self, service: &str, instance: &Instance) -> Result<()> {
        let path = format!("agent/service/deregister/{}", agent_id(service, instance));
        self.web.put(Attempt::REGISTER, &path, None).await.map(|_| ())
    }

    /// The instances in the catalogue, at once; or once they have changed since an index, or the wait is over.
    pub(crate) async fn services(
        &self,
        name: &str,
        service: &str,
        wait: Option<(u64, Duration)>,
    ) -> Result<(u64, Vec<Seen>)> {
        let attempt = Attempt::INSTANCES;
        let mut query = vec![("consistent", String::new())];
        if let Some((index, wait)) = wait {
            query.push(("index", index.to_string()));
            query.push(("wait", format!("{}ms", wait.as_millis())));
        }
        let waits = wait.map_or(Duration::ZERO, |(_, wait)| wait);
        let answer = self.web.get(attempt, &format!("health/service/{name}"), &query, waits).await?;
        let index = answer.index.ok_or_else(|| attempt.unreadable(self.place(), "it has no index"))?;
        let found: Vec<Found> = answer.json(attempt, self.place())?;
        Ok((index, found.into_iter().map(|found| seen(service, found)).collect()))
    }
}

fn agent_id(service: &str, instance: &Instance) -> String {
    format!("{service}-{}", instance.id)
}

fn seen(service: &str, found: Found) -> Seen {
    let mut meta = found.service.meta.unwrap_or_default();
    let id = meta.remove(META_ID).unwrap_or(found.service.id);
    let address = if found.service.address.is_empty() { found.node.address } else { found.service.address };
    let health = |check: &Check| match check.status.as_str() {
        "passing" => Health::Passing,
        "warning" => Health::Warning,
        // Critical, in maintenance, or something that newer releases say.
        _ => Health::Critical,
    };
    let worst = found.checks.iter().map(health).max().unwrap_or(Health::Passing);
    let note = found.checks.iter().rev().find(|check| health(check) == worst).map(|check| check.output.clone());
    let instance = Instance { service: service.to_owned(), id, address, port: found.service.port, meta };
    Seen { instance, health: worst, note: note.unwrap_or_default() }
}
