//! What a manager stands on: a driver that runs, a group that it is in, and a log of its own cluster.

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use warren_control::Shutdown;
use warren_core::{Refusal, State};

use super::{Failed, Failure, StartError};
use crate::background;
use crate::ca::{CaError, Keys};
use crate::peers::{End, Peers};
use crate::raft::driver::DriverError;
use crate::raft::restore::Ended;
use crate::recovery::seat::{self, Seat};
use crate::store::{ProposeError, Store};

/// How long a manager that is alone may take to lead.
const LEAD: Duration = Duration::from_secs(20);

/// Makes the driver one of the things that a stop waits for, and its failure the end of all others.
pub(super) fn attend(ended: Ended, failing: mpsc::Sender<Failed>, shutdown: &Shutdown) {
    let stop = shutdown.token();
    shutdown.spawn("raft", async move {
        let error = match ended.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => DriverError::Panicked,
        };
        tracing::error!(%error, "the manager stops");
        stop.cancel();
        // Nobody may be waiting for it.
        let _ = failing.try_send(error.into());
    });
}

/// Once this manager is none any more, that is written down, and everything ends.
pub(super) fn leave_in_the_end(
    peers: &Peers,
    dir: &Path,
    seat: Seat,
    failing: mpsc::Sender<Failed>,
    shutdown: &Shutdown,
) {
    let (peers, dir, stop) = (peers.clone(), dir.to_owned(), shutdown.token());
    background::spawn(shutdown, "end", async move {
        let (failed, written) = match peers.end().await {
            End::Removed => (Failed::Removed, seat::lose(&dir, &seat)),
            End::Overtaken { life, .. } => {
                (Failed::Overtaken(life), seat::overtaken(&dir, &seat, life).map(drop))
            }
        };
        if let Err(error) = written {
            // The others tell it again at its next start.
            tracing::error!(%error, "that this manager is none any more could not be written down");
        }
        tracing::error!("this manager stops: {failed}");
        // Nobody may be waiting for it.
        let _ = failing.try_send(failed);
        stop.cancel();
    });
}

/// Waits until a manager that is the only voter of its group leads and has applied everything it had on disk; answers
/// whether it leads by then. One that cannot write its log does not: it shows what it has until there is room, unless
/// it is to make a cluster.
pub(super) async fn lead_if_alone(
    store: &Store,
    create: bool,
    failure: &mut Failure,
) -> Result<bool, StartError> {
    let mut watch = store.watch(0);
    let leads = async {
        loop {
            let published = store.read();
            let group = &published.members;
            if group.voters != [store.own()] || !group.voters_outgoing.is_empty() {
                return Ok(false);
            }
            if let Some(held) = &published.held {
                let is_new = create && published.state.cluster().is_none();
                return if is_new { Err(ProposeError::Held(held.clone()).into()) } else { Ok(false) };
            }
            if published.role.may_plan {
                return Ok(true);
            }
            // A missed change is as good a reason to look again as any.
            let _ = watch.next().await;
        }
    };
    tokio::select! {
        leads = leads => leads,
        Some(failed) = failure.recv() => Err(match failed {
            Failed::Driver(error) => StartError::Driver(error),
            Failed::Removed => StartError::Removed,
            Failed::Overtaken(life) => StartError::Overtaken(life),
        }),
        () = tokio::time::sleep(LEAD) => Err(StartError::NoLeader(LEAD)),
    }
}

/// Keys and log must be of one cluster. A log that was lost must not pass for a new cluster: workers would be told
/// that nothing is wanted any more. `may_be_empty`: there is none yet, or the others have it.
pub(super) fn check_cluster(
    state: &State,
    keys: &Keys,
    dir: &Path,
    may_be_empty: bool,
) -> Result<(), StartError> {
    match state.cluster() {
        None if may_be_empty => Ok(()),
        None => Err(CaError::NoCluster(dir.to_owned()).into()),
        Some(cluster) if cluster.id == keys.cluster => Ok(()),
        Some(cluster) => {
            let other = Refusal::OtherCluster { wanted: keys.cluster, found: cluster.id };
            Err(ProposeError::Rejected(other).into())
        }
    }
}
