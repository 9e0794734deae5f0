//! `quorate run`: the agent. Keeps one member alive on this machine, and the node of PostgreSQL that the file declares for it.
//!
//! **Rule:** the first signal ends it in order, the second one at once; etcd's end is recorded either way.

use std::path::PathBuf;
use std::time::Duration;

use quorate_agent::cluster_file::{self, DEFAULT_STATE};
use quorate_agent::peering::{self, AcceptSettings, StandaloneSettings, accept_probe, ensure_standalone};
use quorate_agent::turn::{self, Finish, Node, RunSettings};
use quorate_faults::{Code, Exit, Fault};
use quorate_host::process;
use quorate_plan::peering::ExternalFile;
use quorate_plan::spec::{External, ExternalTls, NAMESPACE};

use super::cluster::ask::{file_or_default, peer_managed};
use crate::args::duration;
use crate::logging::{self, LogArgs};
use crate::printer::Printer;

/// Which member.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct NodeArgs {
    /// The cluster file [default: /etc/quorate/cluster.yaml, or that of the peer-managed node of this machine]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,

    /// This member's name in it [default: the only one]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,
}

impl NodeArgs {
    /// These.
    pub(crate) fn new(config: PathBuf, name: Option<String>) -> NodeArgs {
        NodeArgs { config: Some(config), name }
    }

    /// The file, and the name.
    pub(crate) fn parts(&self) -> Result<(PathBuf, Option<&str>), Fault> {
        Ok((file_or_default(self.config.as_deref(), self.name.as_deref())?, self.name.as_deref()))
    }

    /// Reads the file and finds the member.
    pub(crate) fn node(&self, printer: &mut Printer) -> Result<Node, Fault> {
        let (file, name) = self.parts()?;
        let own = peer_managed(&file, name);
        let (node, warnings) = Node::read(&file, own.as_deref().or(name))?;
        for warning in warnings {
            printer.warning(warning.code, &warning.text);
        }
        Ok(node)
    }
}

/// Flags of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  quorate run --standalone                 a cluster of one; nothing is needed
  quorate run --standalone --etcd-endpoints https://e1:2379 --etcd-ca ca.crt
  quorate run --accept-probe               wait for `quorate peer probe`
  quorate run                              as what this node is, after a join
  quorate run --config cluster.yaml --name n1
  quorate run --config cluster.yaml --name n1 --once
  systemctl start quorate                  the same as a service

It checks the data, restores or founds it where that is safe, starts etcd and keeps it
running. SIGTERM stops etcd too, unless --keep-running; an agent that is killed leaves
etcd running, and the next one takes it over. Health is at /readyz, status at `quorate
status`. Where the file has `postgres:`, this host's node of that group is kept as well.")]
pub(crate) struct Args {
    /// The cluster file [default: the one that the agents of a cluster by hand keep]
    #[arg(long, value_name = "FILE", env = "QUORATE_CONFIG", conflicts_with = "standalone")]
    config: Option<PathBuf>,

    /// Which node [default: the only one of the file, or of this machine]
    #[arg(long, env = "QUORATE_NAME")]
    name: Option<String>,

    /// One turn: look, decide, act; etcd is left running
    #[arg(long)]
    once: bool,

    /// Signals end the agent and leave etcd running
    #[arg(long)]
    keep_running: bool,

    #[command(flatten)]
    by_hand: StandaloneArgs,

    #[command(flatten)]
    log: LogArgs,
}

/// Clusters without a file of a person's.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Clusters by hand")]
struct StandaloneArgs {
    /// Make a cluster of one, once: authorities, certificates, a file; then run it
    #[arg(long)]
    standalone: bool,

    /// Wait to be taken in by `quorate peer probe`, then run
    #[arg(long, conflicts_with_all = ["standalone", "config"])]
    accept_probe: bool,

    /// Where others reach this node [default: towards the default route]
    #[arg(long, value_name = "ADDRESS", conflicts_with = "config")]
    listen: Option<String>,

    /// Where the data lies [default: /var/lib/etcd]
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    data_dir: Option<PathBuf>,

    /// The etcd program [default: the one on the PATH]
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    etcd_binary: Option<PathBuf>,

    /// How long a newcomer may take until it votes [default: 5m]
    #[arg(long, value_name = "TIME", requires = "standalone", value_parser = duration)]
    join_timeout: Option<Duration>,

    /// How etcd is held: strict, basic or off [default: strict for root, else basic]
    #[arg(long = "box", value_name = "LEVEL", requires = "standalone", value_parser = ["strict", "basic", "off"])]
    #[arg(hide_possible_values = true)]
    box_level: Option<String>,

    /// Where GlusterD 2 kept its files; what it left is taken over, once
    #[arg(long, value_name = "DIR", default_value = "/var/lib/glusterd")]
    glusterd_dir: PathBuf,

    /// Where nodes keep their state [default: /var/lib/quorate]
    #[arg(long, value_name = "DIR", env = "QUORATE_STATE_DIR")]
    state_dir: Option<PathBuf>,

    #[command(flatten)]
    external: ExternalArgs,
}

/// An etcd that others run.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "With an etcd that others run")]
struct ExternalArgs {
    /// Its client URLs, parted by commas; no etcd is started here
    #[arg(long, value_name = "URLS", requires = "standalone", value_delimiter = ',')]
    etcd_endpoints: Vec<String>,

    /// Who signed its certificate
    #[arg(long, value_name = "FILE", requires = "etcd_endpoints")]
    etcd_ca: Option<PathBuf>,

    /// What is shown to it
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    etcd_cert: Option<PathBuf>,

    /// The key to that
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    etcd_key: Option<PathBuf>,

    /// As whom it is asked
    #[arg(long, value_name = "NAME", requires = "etcd_password_file")]
    etcd_user: Option<String>,

    /// The file with the password
    #[arg(long, value_name = "FILE", requires = "etcd_user")]
    etcd_password_file: Option<PathBuf>,

    /// What our keys begin with [default: quorate/]
    #[arg(long, value_name = "PREFIX", requires = "etcd_endpoints")]
    etcd_namespace: Option<String>,
}

impl ExternalArgs {
    fn file(&self) -> Result<Option<ExternalFile>, Fault> {
        if self.etcd_endpoints.is_empty() {
            return Ok(None);
        }
        let shown = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string();
        let tls = match (&self.etcd_ca, &self.etcd_cert) {
            (Some(ca), _) => Some(ExternalTls {
                trusted_ca_file: shown(ca),
                cert_file: self.etcd_cert.as_ref().map(shown),
                key_file: self.etcd_key.as_ref().map(shown),
            }),
            (None, None) => None,
            (None, Some(_)) => {
                return Err(Fault::new(Code::Usage, "a certificate is given, and nobody to believe")
                    .hint("name who signed etcd's certificate: `--etcd-ca FILE`"));
            }
        };
        let user = self.etcd_user.clone().zip(self.etcd_password_file.as_ref().map(shown));
        let namespace = self.etcd_namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let external = External { endpoints: self.etcd_endpoints.clone(), namespace, tls };
        Ok(Some(ExternalFile { external, user }))
    }
}

/// Which file, and which node of it.
fn whose(args: &Args, printer: &mut Printer) -> Result<NodeArgs, Fault> {
    let by_hand = &args.by_hand;
    if let Some(config) = &args.config {
        return Ok(NodeArgs::new(config.clone(), args.name.clone()));
    }
    let state_dir = match &by_hand.state_dir {
        Some(dir) => dir.clone(),
        None => cluster_file::place(DEFAULT_STATE)?,
    };
    let place = if by_hand.accept_probe {
        let data_dir = by_hand.data_dir.clone().map_or_else(|| cluster_file::place("/var/lib/etcd"), Ok)?;
        let (name, address) = (args.name.clone(), by_hand.listen.clone());
        let etcd_binary = by_hand.etcd_binary.clone();
        let settings = AcceptSettings { state_dir, name, address, data_dir, etcd_binary };
        let show = |code: &str| {
            printer
                .aside(&format!("waiting: on a server, `quorate peer probe HOST:7700` asks for this code\n{code}\n"));
        };
        runtime()?.block_on(accept_probe(settings, show))?
    } else if by_hand.standalone {
        let stands = ensure_standalone(&StandaloneSettings {
            state_dir,
            name: args.name.clone(),
            address: by_hand.listen.clone(),
            data_dir: by_hand.data_dir.clone(),
            etcd_binary: by_hand.etcd_binary.clone(),
            join_timeout: by_hand.join_timeout,
            box_level: by_hand.box_level.clone(),
            glusterd_dir: by_hand.glusterd_dir.clone(),
            external: by_hand.external.file()?,
            namespace: by_hand.external.etcd_namespace.clone(),
        })?;
        for note in &stands.notes {
            printer.note(note);
        }
        if stands.adopts {
            let (node, _) = Node::read(&stands.place.file(), Some(&stands.place.name))?;
            let adopted = runtime()?.block_on(turn::adopt_member(&node))?;
            printer
                .note(&format!("took over its data: member {} of cluster {}", adopted.member_id, adopted.cluster_id));
        }
        stands.place
    } else {
        let found = peering::find(&state_dir, args.name.as_deref())?;
        let (place, _) = found.ok_or_else(|| {
            Fault::new(Code::NodeBlank, "there is no cluster file, and this node belongs to no cluster yet")
                .hint("`--standalone` makes one, `quorate peer join` joins one, `--config FILE` follows a file")
        })?;
        place
    };
    Ok(NodeArgs::new(place.file(), Some(place.name)))
}

/// Runs the agent.
pub(crate) fn run(args: &Args, printer: &mut Printer) -> Result<Exit, Fault> {
    forbid_dumps()?;
    let node = whose(args, printer)?.node(printer)?;
    logging::start(&args.log)?;
    let settings = RunSettings { node, once: args.once, keep_running: args.keep_running, shim: own_program() };
    let runtime = runtime()?;
    let finish = runtime.block_on(turn::run(settings));
    // What still works in the background can be cut off at any point, and is by now.
    runtime.shutdown_background();
    match finish? {
        Finish::Stopped | Finish::Left => Ok(Exit::Done),
        Finish::Halted(code) => Ok(code.exit()),
    }
}

/// One thread: an agent mostly waits.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Fault::io("cannot start the runtime", error))
}

/// No core dump of this process holds its private keys.
pub(crate) fn forbid_dumps() -> Result<(), Fault> {
    process::forbid_dumps().map_err(|error| Fault::io("cannot forbid core dumps of this process", error))
}

/// Our own program, also where its file was replaced by a newer one meanwhile.
pub(crate) fn own_program() -> PathBuf {
    match std::env::current_exe() {
        Ok(path) if path.exists() => path,
        Ok(_) | Err(_) => PathBuf::from("/proc/self/exe"),
    }
}
