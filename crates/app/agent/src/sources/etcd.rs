//! `etcd:URL[,URL]/PREFIX`: keys below a prefix of a live etcd. One helper cluster can found many.
//!
//! Each key `PREFIX/NAME` is a member; its value is a peer URL, several with commas, or a JSON object with `peer_urls`.
//! Keys may begin with `/` or not: `etcd:http://h:2379/prod` finds `prod/n1` as well as `/prod/n1`.
//!
//! **Invariant:** reads are linearizable: an etcd that has lost its quorum is no answer.

use quorate_etcd::client::messages::KeyValue;
use quorate_etcd::client::{self, Client, Settings, Tls};
use quorate_faults::{Code, Fault, Result};
use quorate_plan::Warning;
use quorate_plan::roster::{Answer, Roster, parse_member_value, quoted};

use super::credentials::{Credentials, Secret, or_env};
use super::{Asked, BODY_MAX, Source, SourceOptions, invalid, silent, too_long};

/// A prefix in an etcd.
pub(super) struct Etcd {
    settings: Settings,
    prefix: String,
    provenance: String,
    warnings: Vec<Warning>,
}

impl Etcd {
    pub(super) fn open(rest: &str, options: &SourceOptions) -> Result<Etcd> {
        let uri = format!("etcd:{rest}");
        let (endpoints, prefix) = split(rest).map_err(|why| {
            invalid(&uri, why).hint("write `etcd:https://10.0.0.1:2379,https://10.0.0.2:2379/PREFIX`")
        })?;
        let mut settings = Settings::new(endpoints);
        settings.tls = tls(options);
        let credentials = Credentials::read(&SourceOptions {
            cacert: settings.tls.ca.clone(),
            cert: settings.tls.cert.clone(),
            key: settings.tls.key.clone(),
            user_file: options.user_file.clone().or_else(|| options.token_file.clone()),
            token_file: None,
            ..options.clone()
        })?;
        let user = credentials.user.or_else(|| user_from_env(options));
        settings.credentials =
            user.map(|(name, password)| client::Credentials { name, password: password.reveal().to_owned() });
        Ok(Etcd { settings, prefix, provenance: uri, warnings: credentials.warnings })
    }

    async fn answer(&self) -> Result<Answer> {
        let client = Client::connect(&self.settings).await.map_err(|fault| self.silent(fault))?;
        let below = format!("{}/", self.prefix.trim_matches('/'));
        let rooted = format!("/{below}");
        let plain = client.list(below.as_str()).await.map_err(|fault| self.silent(fault))?.kvs;
        let slashed = client.list(rooted.as_str()).await.map_err(|fault| self.silent(fault))?.kvs;
        let (prefix, keys) = match (plain.is_empty(), slashed.is_empty()) {
            (false, false) => return Err(self.twice(&below, &rooted)),
            (_, true) => (below, plain),
            (true, false) => (rooted, slashed),
        };
        if keys.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>() > BODY_MAX {
            return Err(too_long(&self.provenance));
        }
        let members = keys.iter().map(|kv| {
            let name = self.name(&prefix, kv)?;
            parse_member_value(name, &kv.value, &self.provenance)
        });
        Ok(Roster::build(&self.provenance, members.collect::<Result<Vec<_>>>()?)?.into())
    }

    /// The one part of the key below the prefix.
    fn name<'a>(&self, prefix: &str, kv: &'a KeyValue) -> Result<&'a str> {
        let name = kv.key.strip_prefix(prefix.as_bytes()).and_then(|name| std::str::from_utf8(name).ok());
        match name {
            Some(name) if !name.is_empty() && !name.contains('/') => Ok(name),
            _ => {
                let key = quoted(&String::from_utf8_lossy(&kv.key));
                let attempt =
                    format!("cannot read the list from {}: key {key} names no member", quoted(&self.provenance));
                let hint = format!("keep only keys of the form `{prefix}NAME` below `{prefix}`");
                Err(Fault::new(Code::SourceNotAList, attempt).hint(hint))
            }
        }
    }

    fn twice(&self, below: &str, rooted: &str) -> Fault {
        let attempt = format!(
            "cannot read the list from {}: there are keys below both `{below}` and `{rooted}`",
            quoted(&self.provenance)
        );
        Fault::new(Code::SourceNotAList, attempt).hint("delete one of them, or choose another prefix")
    }

    fn silent(&self, fault: Fault) -> Fault {
        let hint = fault.hint_text().unwrap_or("see the cause").to_owned();
        silent(&self.provenance, "etcd gave no answer").hint(hint).caused_by(fault)
    }
}

impl Source for Etcd {
    fn provenance(&self) -> &str {
        &self.provenance
    }

    fn ask(&self) -> Asked<'_> {
        Box::pin(self.answer())
    }

    fn warnings(&self) -> Vec<Warning> {
        self.warnings.clone()
    }
}

/// Takes endpoints apart up to the first `/` that does not belong to a scheme; the rest is the prefix.
fn split(rest: &str) -> std::result::Result<(Vec<String>, String), &'static str> {
    let mut endpoints = Vec::new();
    let mut rest = rest;
    loop {
        let (scheme, after) = match rest.split_once("://") {
            Some((scheme @ ("http" | "https"), after)) => (scheme, after),
            _ => ("http", rest),
        };
        let end = after.find([',', '/']).ok_or("it names no prefix")?;
        let (host, tail) = after.split_at(end);
        match host {
            "" => return Err("an endpoint is empty"),
            _ if host.contains('@') => {
                return Err("it contains a user name or password, which every user of this host could read");
            }
            _ => endpoints.push(format!("{scheme}://{host}")),
        }
        match tail.strip_prefix(',') {
            Some(more) => rest = more,
            None if tail.trim_matches('/').is_empty() => return Err("it names no prefix"),
            None => return Ok((endpoints, tail.to_owned())),
        }
    }
}

/// Our flags first, then the variables that etcd's own tools read.
fn tls(options: &SourceOptions) -> Tls {
    let ca = or_env(&options.cacert, options, "ETCDCTL_CACERT");
    if options.cert.is_some() || options.key.is_some() {
        return Tls { ca, cert: options.cert.clone(), key: options.key.clone(), ..Tls::default() };
    }
    let cert = or_env(&None, options, "ETCDCTL_CERT");
    Tls { ca, cert, key: or_env(&None, options, "ETCDCTL_KEY"), ..Tls::default() }
}

/// `ETCDCTL_USER` is `user:password`, or the user alone beside `ETCDCTL_PASSWORD`.
fn user_from_env(options: &SourceOptions) -> Option<(String, Secret)> {
    let user = (options.env.0)("ETCDCTL_USER")?;
    if let Some((name, password)) = user.split_once(':') {
        return Some((name.to_owned(), Secret::new(password)));
    }
    let password = (options.env.0)("ETCDCTL_PASSWORD")?;
    Some((user, Secret::new(password)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_and_prefix_are_told_apart() {
        for (rest, endpoints, prefix) in [
            ("http://a:2379/prod", "http://a:2379", "/prod"),
            ("https://a:2379,https://b:2379/x/y,z/", "https://a:2379 https://b:2379", "/x/y,z/"),
            ("a:2379,[::1]:2379//prod", "http://a:2379 http://[::1]:2379", "//prod"),
        ] {
            let (found, below) = split(rest).unwrap();
            assert_eq!((found.join(" ").as_str(), below.as_str()), (endpoints, prefix), "{rest}");
        }
        assert_eq!(split("http://a:2379"), Err("it names no prefix"));
        assert_eq!(split("http://a:2379/"), Err("it names no prefix"));
        assert_eq!(split(",http://a:2379/x"), Err("an endpoint is empty"));
        assert_eq!(split("http:///x"), Err("an endpoint is empty"));
    }
}
