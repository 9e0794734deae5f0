//! Machines: hosts with an own network and own `/etc`, `/usr` and `/var/lib`, so that commands run on each exactly as a guide
//! prints them.
//!
//! **Rule:** what a machine writes lands in a folder of the test; the files of the machine that runs the tests stay as they are.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::hosts::Host;
use crate::process::{Running, wait_until};
use crate::programs::program;

/// Directories that each machine has for itself: what is there at first is what the real machine has.
const OWN: [&str; 3] = ["etc", "usr", "var/lib"];

/// A machine of its own.
#[derive(Debug)]
pub struct Machine {
    name: String,
    network: String,
    holder: Running,
}

impl Machine {
    /// Makes one on a host; its changes lie below `root`. Needs root.
    pub fn new(host: &Host, root: &Path) -> Machine {
        Machine::named(host, host.name(), root)
    }

    /// The same with another host name.
    pub fn named(host: &Host, name: &str, root: &Path) -> Machine {
        let ready = root.join("ready");
        let mut script = String::from("set -e\n");
        for dir in OWN {
            let place = |kind: &str| root.join(kind).join(dir.replace('/', "-"));
            let (upper, work) = (place("upper"), place("work"));
            for made in [&upper, &work] {
                std::fs::create_dir_all(made).expect("a folder of the test can be made");
            }
            let layers = format!("lowerdir=/{dir},upperdir={},workdir={}", upper.display(), work.display());
            script += &format!("mount -t overlay overlay -o {layers} /{dir}\n");
        }
        script += &format!("hostname {name}\n");
        script += &format!("mkdir -p /etc/quorate\ntouch {}\nexec sleep infinity\n", ready.display());
        let args = ["--mount", "--uts", "--propagation", "private", "--", "sh", "-c", &script].map(str::to_owned);
        let mut holder = host.start(&program("unshare"), &args, &[]);
        wait_until("a machine with its own files", Duration::from_secs(60), || {
            assert!(holder.ended().is_none(), "cannot make a machine: {}", holder.log());
            ready.exists()
        });
        Machine { name: name.to_owned(), network: host.network_namespace(), holder }
    }

    fn enter(&self) -> Vec<String> {
        let space = |kind: &str, file: &str| format!("--{kind}=/proc/{}/ns/{file}", self.holder.pid());
        vec![self.network.clone(), space("mount", "mnt"), space("uts", "uts")]
    }

    fn words(&self, line: &str) -> Vec<String> {
        let mut words = self.enter();
        words.extend(["--", "sh", "-c"].map(str::to_owned));
        words.push(format!("cd /etc/quorate && {line}"));
        words
    }

    /// Runs one line of a guide in `/etc/quorate`, as a shell does.
    pub fn run(&self, line: &str, env: &[(String, String)]) -> Output {
        let mut command = Command::new(program("nsenter"));
        command.args(self.words(line)).envs(env.iter().cloned()).stdin(Stdio::null());
        command.output().expect("nsenter can be run")
    }

    /// The same; it must succeed. Returns what it printed.
    #[track_caller]
    pub fn must(&self, line: &str, env: &[(String, String)]) -> String {
        let output = self.run(line, env);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}$ {line}\n{}\n{out}{err}", self.name, output.status);
        out
    }

    /// Copies a file from another machine, as `scp` does.
    #[track_caller]
    pub fn fetch(&self, from: &Machine, path: &str) {
        self.write(path, from.must(&format!("cat {path}"), &[]).as_bytes());
    }

    /// Starts a line that runs until its guard is dropped.
    pub fn start(&self, line: &str, env: &[(String, String)]) -> Running {
        Running::start(&program("nsenter"), &self.words(&format!("exec {line}")), env)
    }

    /// Writes a file there, as a copy from elsewhere does.
    pub fn write(&self, path: &str, bytes: &[u8]) {
        let mut command = Command::new(program("nsenter"));
        command.args(self.words(&format!("cat > {path}"))).stdin(Stdio::piped());
        let mut child = command.spawn().expect("nsenter can be run");
        child.stdin.take().expect("it has one").write_all(bytes).expect("the machine takes it");
        assert!(child.wait().expect("it ends").success(), "cannot write `{path}`");
    }

    /// Puts a program of this machine onto the other's path.
    pub fn install(&self, name: &str, program: &Path) {
        let program: PathBuf = std::fs::canonicalize(program).expect("the program is there");
        self.must(&format!("ln -sf {} /usr/bin/{name}", program.display()), &[]);
    }
}
