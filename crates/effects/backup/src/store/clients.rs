//! The clients of a store, made again when the files with its credentials change.
//!
//! **Invariant:** whoever asks gets clients that work as well as those before: where new files cannot be used, the old
//! clients stay.

use std::sync::{Arc, Mutex, PoisonError};

use object_store::ObjectStore;
use quorate_faults::Result;

use super::credentials::{self, Environment, Given};

/// Secrets of former credentials that are still kept out of texts: answers to old requests may come late.
const SECRETS_KEPT: usize = 32;

type Make = dyn Fn(&Given) -> Result<Pair> + Send + Sync;

/// A client, and the same without retries, for requests whose repetition would change their meaning.
pub(super) type Pair = (Arc<dyn ObjectStore>, Arc<dyn ObjectStore>);

/// Clients that notice new credentials.
pub(super) struct Clients {
    now: Mutex<Arc<Made>>,
    /// `None`: this store knows no credentials.
    again: Option<(Environment, Box<Make>)>,
}

/// Clients as they were made last.
pub(super) struct Made {
    pub(super) inner: Arc<dyn ObjectStore>,
    pub(super) once: Arc<dyn ObjectStore>,
    /// Words that no text may carry.
    pub(super) secrets: Vec<String>,
    given: Option<Given>,
}

impl Clients {
    /// Of a store without credentials.
    pub(super) fn fixed(inner: Arc<dyn ObjectStore>) -> Clients {
        let made = Made { once: Arc::clone(&inner), inner, secrets: Vec::new(), given: None };
        Clients { now: Mutex::new(Arc::new(made)), again: None }
    }

    /// Of a store that is opened by variables, and the files they name.
    pub(super) fn new(
        variables: Environment,
        make: impl Fn(&Given) -> Result<Pair> + Send + Sync + 'static,
    ) -> Result<Clients> {
        let given = credentials::read(&variables)?;
        let (inner, once) = make(&given)?;
        let made = Made { inner, once, secrets: given.secrets(), given: Some(given) };
        Ok(Clients { now: Mutex::new(Arc::new(made)), again: Some((variables, Box::new(make))) })
    }

    /// The clients for a request that begins now.
    pub(super) fn current(&self) -> Arc<Made> {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = self.made_again(&now) {
            *now = Arc::new(made);
        }
        Arc::clone(&now)
    }

    /// The clients as they are.
    pub(super) fn last(&self) -> Arc<Made> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the next request would use other credentials than the last one.
    pub(super) fn are_outdated(&self) -> bool {
        self.last().given.as_ref().is_some_and(Given::is_outdated)
    }

    fn made_again(&self, now: &Made) -> Option<Made> {
        let (variables, make) = self.again.as_ref()?;
        let before = now.given.as_ref().filter(|given| given.is_outdated())?;
        let given = credentials::read(variables).ok().filter(|given| given.replaces(before))?;
        let (inner, once) = make(&given).ok()?;
        let mut secrets = given.secrets();
        secrets.extend(now.secrets.iter().filter(|known| !given.secrets().contains(known)).cloned());
        secrets.truncate(SECRETS_KEPT);
        Some(Made { inner, once, secrets, given: Some(given) })
    }
}
