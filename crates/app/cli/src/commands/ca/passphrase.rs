//! Where the passphrase of the issuing keys comes from: a file, the environment's file, or the terminal, without echo.
//!
//! **Invariant:** it never stands in the arguments, and the terminal echoes again whatever happens.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;

use quorate_faults::{Code, Fault};
use quorate_pki::Passphrase;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// Longer lines are no passphrase.
const LINE_MAX: u64 = 4096;

/// The flag.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PassphraseArgs {
    /// File whose first line is the passphrase of the issuing keys [default: asked for]
    #[arg(long, value_name = "FILE", env = quorate_pki::ENVIRONMENT)]
    passphrase_file: Option<PathBuf>,
}

impl PassphraseArgs {
    /// The passphrase, asked for once, or twice where it is a new one.
    pub(super) fn get(&self, what: &str, twice: bool) -> Result<Passphrase, Fault> {
        let file = self.passphrase_file.clone().or_else(Passphrase::file_in_environment);
        if let Some(file) = file {
            return Passphrase::from_file(&file);
        }
        let terminal = Terminal::open().map_err(|error| {
            Fault::new(Code::CaPassphrase, format!("there is no passphrase for {what}, and no terminal to ask on"))
                .hint("give a file with `--passphrase-file`")
                .caused_by(error)
        })?;
        let first = terminal.ask_secret(&format!("passphrase for {what}: "))?;
        if twice && *first != *terminal.ask_secret("once more: ")? {
            return Err(Fault::new(Code::CaPassphrase, "the two passphrases differ").hint("type the same one twice"));
        }
        Passphrase::new(first)
    }
}

/// The terminal of whoever runs this, wherever stdin and stdout lead.
pub(crate) struct Terminal {
    file: File,
}

impl Terminal {
    pub(crate) fn open() -> std::io::Result<Terminal> {
        File::options().read(true).write(true).open("/dev/tty").map(|file| Terminal { file })
    }

    /// Asks a question that is answered with yes or anything else.
    pub(crate) fn ask_yes(&self, question: &str) -> Result<bool, Fault> {
        let answer = self.ask(question)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }

    fn ask_secret(&self, question: &str) -> Result<Zeroizing<String>, Fault> {
        let silent = Silent::begin(&self.file)?;
        let answer = self.ask(question);
        drop(silent);
        let _ = (&self.file).write_all(b"\n");
        answer
    }

    /// Asks a question that is answered with a line.
    pub(crate) fn ask(&self, question: &str) -> Result<Zeroizing<String>, Fault> {
        let fail = |error| Fault::io("cannot ask on the terminal", error);
        (&self.file).write_all(question.as_bytes()).map_err(fail)?;
        let mut line = Zeroizing::new(String::with_capacity(LINE_MAX as usize));
        BufReader::new((&self.file).take(LINE_MAX)).read_line(&mut line).map_err(fail)?;
        Ok(line)
    }
}

/// A terminal that does not echo until this is dropped.
struct Silent<'a> {
    file: &'a File,
    before: Termios,
}

impl Silent<'_> {
    fn begin(file: &File) -> Result<Silent<'_>, Fault> {
        let fail = |errno: rustix::io::Errno| Fault::io("cannot silence the terminal", errno.into());
        let before = tcgetattr(file).map_err(fail)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(file, OptionalActions::Flush, &silent).map_err(fail)?;
        Ok(Silent { file, before })
    }
}

impl Drop for Silent<'_> {
    fn drop(&mut self) {
        let _ = tcsetattr(self.file, OptionalActions::Flush, &self.before);
    }
}
