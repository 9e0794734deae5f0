//! `quorate cluster check`: whether a cluster file can be used, with the line of every mistake.

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::peers::{check_agent_addresses, check_agent_tokens};
use quorate_agent::{cluster_file, declared};
use quorate_faults::{Code, Exit, Fault};
use quorate_plan::Warning;
use quorate_plan::spec::{DefaultValue, Mistakes, Spec, default_values};
use serde::Serialize;

use crate::printer::Printer;
use crate::render::{Page, Report};

/// Flags of `cluster check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate cluster check cluster.yaml
  quorate cluster check cluster.yaml --name n1     and what that member uses
  quorate cluster check cluster.yaml --defaults    and every key's default
  quorate cluster check cluster.yaml --resolve     and what its source names
  quorate cluster check cluster.yaml --output json

The file is only read: no program that it names is run, no server is queried, and nothing
is changed. With `--resolve` its `source` of members is queried once, as agents query it;
`exec:` runs a program.
Exit code 0: it can be used. 4: it has mistakes, which are all shown.")]
pub(crate) struct Args {
    /// The cluster file
    pub(crate) file: PathBuf,

    /// Also show what this member uses; refused where it is not declared
    #[arg(long)]
    name: Option<String>,

    /// Also query the `source` of members, which may run a program that the file names
    #[arg(long)]
    resolve: bool,

    /// Also list every key with its default and what it is for
    #[arg(long)]
    defaults: bool,
}

/// Checks it.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    let shown = args.file.display().to_string();
    let bytes = cluster_file::bytes(&args.file)?;
    match Spec::parse(&bytes, &shown) {
        Ok(_) => {
            let (spec, warnings) = cluster_file::parse(&bytes, &shown)?;
            for Warning { code, text } in &warnings {
                printer.warning(*code, text);
            }
            let spec = match args.resolve {
                true => resolved(spec, args.name.as_deref(), printer)?,
                false => spec,
            };
            check_agent_addresses(&spec)?;
            check_agent_tokens(&spec)?;
            // A file without a source has its members.
            let skipped = spec.source.is_some() && !args.resolve;
            let named = args.name.as_deref().filter(|_| !skipped);
            let member = named.map(|name| Uses::of(&spec, name, &shown)).transpose()?;
            let defaults = if args.defaults { default_values() } else { Vec::new() };
            printer.report(&Good { member, defaults, not_resolved: skipped, ..Good::of(shown, &spec) });
            Ok(Exit::Done)
        }
        Err(mistakes) => {
            let exit = mistakes.fault().code().exit();
            printer.report(&Bad { valid: false, mistakes });
            Ok(exit)
        }
    }
}

/// With the members that its source names. One that does not answer, or not in full yet, leaves the file as good as it is.
fn resolved(spec: Spec, name: Option<&str>, printer: &mut Printer) -> Result<Spec, Fault> {
    match declared::resolve_now(spec.clone(), name, Duration::ZERO) {
        Ok((full, warnings)) => {
            for Warning { code, text } in &warnings {
                printer.warning(*code, text);
            }
            Ok(full)
        }
        Err(fault) if matches!(fault.code().exit(), Exit::ConfigInvalid | Exit::Usage) => Err(fault),
        Err(fault) => {
            printer.warning(fault.code(), &format!("{fault}; the members were not checked"));
            Ok(spec)
        }
    }
}

/// A file that can be used.
#[derive(Serialize)]
struct Good<'a> {
    file: String,
    valid: bool,
    members: usize,
    declaration: String,
    /// The file has a source of members, which was not queried.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_resolved: bool,
    spec: &'a Spec,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<Uses>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    defaults: Vec<DefaultValue>,
}

/// What one member uses.
#[derive(Serialize)]
struct Uses {
    name: String,
    data_dir: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    wal_dir: Option<String>,
    state_dir: String,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
    agent_url: String,
    api_listen: String,
    health_listen: String,
}

impl Uses {
    fn of(spec: &Spec, name: &str, file: &str) -> Result<Uses, Fault> {
        let member = match (spec.member(name), &spec.source) {
            (Some(member), _) => member,
            (None, Some(source)) => {
                let attempt = format!("member `{name}` is not in `{file}`: `{}` names the members", source.uri);
                return Err(Fault::new(Code::RosterSelfMissing, attempt).hint("check it without `--name`"));
            }
            (None, None) => spec.local(Some(name), file)?,
        };
        Ok(Uses {
            name: member.name.clone(),
            data_dir: member.data_dir.clone(),
            wal_dir: member.wal_dir.clone(),
            state_dir: spec.state_dir_of(name),
            peer_urls: member.peer_urls.clone(),
            client_urls: member.client_urls.clone(),
            agent_url: spec.agent_url_of(member),
            api_listen: spec.api_listen_of(member),
            health_listen: spec.health_listen_of(member),
        })
    }

    fn render(&self, page: &mut Page) {
        page.gap();
        page.heading(format!("member {}", self.name));
        let rows = [
            ("data", Some(self.data_dir.clone())),
            ("wal", self.wal_dir.clone()),
            ("state", Some(self.state_dir.clone())),
            ("peers", Some(self.peer_urls.join(", "))),
            ("clients", Some(self.client_urls.join(", "))),
            ("agent", Some(format!("{} (listens at {})", self.agent_url, self.api_listen))),
            ("health", Some(self.health_listen.clone())),
        ];
        for (what, value) in rows {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                page.line(format!("  {what:<8} {value}"));
            }
        }
    }
}

impl Good<'_> {
    fn of(file: String, spec: &Spec) -> Good<'_> {
        Good {
            file,
            valid: true,
            members: spec.source.as_ref().map_or(spec.members.len(), |source| source.size),
            declaration: spec.declaration_hash(),
            not_resolved: false,
            spec,
            member: None,
            defaults: Vec::new(),
        }
    }
}

impl Report for Good<'_> {
    fn render(&self, page: &mut Page) {
        let founds = match self.spec.bootstrap {
            // Which ids it has is decided by the nonces of its nodes.
            Some(bootstrap) if self.spec.is_resolved() => format!("declares bootstrap {} of a cluster", bootstrap.id),
            Some(_) => "declares the founding of a cluster once its source has named the members".to_owned(),
            None => "declares no founding".to_owned(),
        };
        let members = if self.members == 1 { "1 member".to_owned() } else { format!("{} members", self.members) };
        page.line(format!("{}: can be used; {members}, {founds}", self.file));
        if self.not_resolved {
            page.line("  members were not resolved: `--resolve` queries the source, which may run a program");
        }
        if let Some(member) = &self.member {
            member.render(page);
        }
        if !self.defaults.is_empty() {
            page.gap();
            let row = |value: &DefaultValue| {
                [value.path.clone(), value.default.clone().unwrap_or_else(|| "-".to_owned()), value.about.to_owned()]
            };
            page.table(["KEY", "DEFAULT", "WHAT IT IS FOR"], self.defaults.iter().map(row));
        }
    }
}

/// A file that cannot.
#[derive(Serialize)]
struct Bad {
    valid: bool,
    #[serde(flatten)]
    mistakes: Mistakes,
}

impl Report for Bad {
    fn render(&self, page: &mut Page) {
        for line in self.mistakes.render().lines() {
            page.line(line);
        }
    }
}
