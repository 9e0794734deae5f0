//! Hosts made of network namespaces: own addresses, one switch between them, and partitions that swallow packets in silence.
//!
//! **Rule:** a host lives as long as the process that holds its namespace, and that one dies with the test. What else runs in
//! a host is killed when the [`Hosts`] are dropped; what a killed test left running is killed by the next one.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::Ipv4Addr;
use std::ops::Index;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::{Running, kill_hard, run, wait_until};
use crate::programs::program;

/// Nobody has this address, so the switch hands packets for it to everyone, and everyone drops them.
const NOBODY: &str = "02:00:00:00:00:fe";

/// How long the kernel may take for what it does at once.
const LIMIT: Duration = Duration::from_secs(60);

/// Several hosts that reach each other, until they are partitioned. Needs root.
#[derive(Debug)]
pub struct Hosts {
    hosts: Vec<Host>,
    /// The namespace of the switch.
    hub: Space,
}

/// One host: `lo`, and one address that the others reach.
#[derive(Debug)]
pub struct Host {
    name: String,
    address: Ipv4Addr,
    link: String,
    space: Space,
}

/// A network namespace, and the process that holds it.
#[derive(Debug)]
struct Space {
    holder: Running,
}

impl Hosts {
    /// Makes hosts `h1` to `h<count>` with addresses from 10.77.0.1 on. Every call makes a net of its own, so tests that run at
    /// once never meet.
    pub fn new(count: u8) -> Hosts {
        Hosts::in_network([10, 77, 0], count)
    }

    /// The same with addresses of another network: guides name theirs.
    pub fn in_network(network: [u8; 3], count: u8) -> Hosts {
        assert!(rustix::process::geteuid().is_root(), "hosts of network namespaces need root: run the tests as root");
        end_leftovers();
        let hub = Space::new();
        hub.ip(&["link", "add", "switch", "type", "bridge"]);
        hub.ip(&["link", "set", "switch", "up"]);
        let hosts = (1..=count).map(|number| Host::new(network, number, &hub)).collect();
        Hosts { hosts, hub }
    }

    /// The hosts in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Separates host `one` from each of `others`, in both directions: packets vanish, nobody is told.
    pub fn partition(&self, one: usize, others: &[usize]) {
        for other in others {
            self.cut(one, *other);
            self.cut(*other, one);
        }
    }

    /// Lets packets from host `from` to host `to` vanish; the other direction stays.
    pub fn cut(&self, from: usize, to: usize) {
        assert_ne!(from, to, "a host always reaches itself");
        let (from, to) = (&self[from], &self[to]);
        from.ip(&[
            "neigh",
            "replace",
            &to.address.to_string(),
            "lladdr",
            NOBODY,
            "dev",
            &from.link,
            "nud",
            "permanent",
        ]);
    }

    /// Ends every partition.
    pub fn heal(&self) {
        for host in &self.hosts {
            // What is permanent was put there by `cut`; the rest the kernel finds out again.
            host.ip(&["neigh", "flush", "dev", &host.link, "nud", "permanent"]);
        }
    }
}

impl Index<usize> for Hosts {
    type Output = Host;

    fn index(&self, at: usize) -> &Host {
        &self.hosts[at]
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Shims and servers outlive the agents that started them; the holders themselves die with their guards.
        let spaces: BTreeSet<PathBuf> =
            self.hosts.iter().map(|host| &host.space).chain([&self.hub]).map(Space::id).collect();
        end_all_in(&spaces);
    }
}

impl Host {
    fn new([a, b, c]: [u8; 3], number: u8, hub: &Space) -> Host {
        let space = Space::new();
        let (port, link) = (format!("port{number}"), link_name(std::process::id(), number));
        let host = Host { name: format!("h{number}"), address: Ipv4Addr::new(a, b, c, number), link, space };
        let holder = host.space.holder.pid().to_string();
        hub.ip(&["link", "add", &port, "type", "veth", "peer", "name", &host.link, "netns", &holder]);
        hub.ip(&["link", "set", &port, "master", "switch", "up"]);
        host.ip(&["link", "set", "lo", "up"]);
        host.ip(&["address", "add", &format!("{}/24", host.address), "dev", &host.link]);
        host.ip(&["link", "set", &host.link, "up"]);
        host
    }

    /// Its name: `h1` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the other hosts reach it.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What `nsenter` takes to be in its network.
    pub(crate) fn network_namespace(&self) -> String {
        self.space.enter()
    }

    /// A program on this host, not yet run. Its process id is the program's own.
    pub fn command(&self, path: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program("nsenter"));
        command.arg(self.space.enter()).arg("--").arg(path.as_ref());
        command
    }

    /// Starts a program on this host that dies with its guard; see [`Running::start`].
    pub fn start(&self, path: &Path, args: &[String], env: &[(String, String)]) -> Running {
        let mut all = vec![self.space.enter(), "--".to_owned(), path.display().to_string()];
        all.extend(args.iter().cloned());
        Running::start(&program("nsenter"), &all, env)
    }

    /// Runs `work` in a thread that is on this host: what it connects to, and where it listens, is seen from there. Threads
    /// that it starts are there as well.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let space = File::open(self.space.file()).expect("the holder of the namespace lives");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may enter");
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn ip(&self, args: &[&str]) {
        self.space.ip(args);
    }
}

impl Space {
    fn new() -> Space {
        let args = ["--net", "--", "sleep", "infinity"].map(str::to_owned);
        let mut holder = Running::start(&program("unshare"), &args, &[]);
        let own = std::fs::read_link("/proc/self/ns/net").expect("a process sees its own namespace");
        let file = format!("/proc/{}/ns/net", holder.pid());
        wait_until("a network namespace of its own", LIMIT, || {
            assert!(holder.ended().is_none(), "cannot make a network namespace: {}", holder.log());
            std::fs::read_link(&file).is_ok_and(|there| there != own)
        });
        Space { holder }
    }

    fn file(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.pid())
    }

    fn enter(&self) -> String {
        format!("--net={}", self.file())
    }

    fn id(&self) -> PathBuf {
        std::fs::read_link(self.file()).unwrap_or_default()
    }

    fn ip(&self, args: &[&str]) {
        run(Command::new(program("nsenter")).arg(self.enter()).arg("--").arg(program("ip")).args(args));
    }
}

/// The name of a host's link says whose test it is, and every process in the host shows it.
fn link_name(owner: u32, number: u8) -> String {
    format!("q{owner}n{number}")
}

/// The process whose test made the host that `process` runs in.
fn owner_of(process: u32) -> Option<u32> {
    let links = std::fs::read_to_string(format!("/proc/{process}/net/dev")).ok()?;
    links.lines().find_map(|line| {
        let (owner, number) = line.split(':').next()?.trim().strip_prefix('q')?.split_once('n')?;
        number.parse::<u8>().ok()?;
        owner.parse().ok()
    })
}

/// Every process there is, with the namespace that it is in.
fn processes() -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()?))).collect()
}

/// Kills until nobody is left: whoever was just being started is found in the next round.
fn end_all_in(spaces: &BTreeSet<PathBuf>) {
    let limit = std::time::Instant::now() + LIMIT;
    while std::time::Instant::now() < limit {
        let found: Vec<u32> =
            processes().into_iter().filter(|(_, space)| spaces.contains(space)).map(|(pid, _)| pid).collect();
        if found.is_empty() {
            return;
        }
        found.into_iter().for_each(kill_hard);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Ends what runs in hosts whose test is gone.
fn end_leftovers() {
    let own = std::fs::read_link("/proc/self/ns/net").expect("a process sees its own namespace");
    let strange = processes().into_iter().filter(|(_, space)| *space != own);
    let gone =
        strange.filter(|(pid, _)| owner_of(*pid).is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()));
    end_all_in(&gone.map(|(_, space)| space).collect());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_link_fits_and_is_read_back() {
        // The kernel takes 15 characters, and process ids end at 2^22.
        assert!(link_name(4_194_304, 255).len() <= 15);
        let hosts = Hosts::new(1);
        assert_eq!(owner_of(hosts[0].space.holder.pid()), Some(std::process::id()));
        assert_eq!(owner_of(std::process::id()), None);
    }
}
