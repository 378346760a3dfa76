//! Which manager a directory is of. What its files say of that must agree before anything else is done with them.

use std::path::Path;
use std::time::SystemTime;

use warren_log::Engine;

use super::StartError;
use crate::ca::{CaError, Keys, adopt_content_key, verify_content_key};
use crate::recovery::alone;
use crate::recovery::seat::{self, ManagerIdentity, Seat, Standing};

/// The keys and the place of the manager in `dir`, which is made where there is none and `create` allows it.
pub(super) fn identify(dir: &Path, create: bool, engine: Engine) -> Result<(Keys, Seat), StartError> {
    let now = SystemTime::now();
    let Some(seat) = seated(dir, create)? else {
        seat::begin_init(dir)?;
        let keys = Keys::open(dir, true, now)?;
        let seat = Seat::first(keys.identity());
        seat::take(dir, &seat)?;
        return Ok((keys, seat));
    };
    let seat = with_content_key(dir, engine, seat)?;
    Ok((Keys::open(dir, false, now)?, seat))
}

/// Which manager the directory is of; `None` where `manager init` may make it the first one of its cluster.
fn seated(dir: &Path, create: bool) -> Result<Option<Seat>, StartError> {
    match seat::look(dir)? {
        Standing::Seated(seat) => Ok(Some(seat)),
        Standing::Nothing | Standing::InitPending if create => Ok(None),
        Standing::Nothing | Standing::InitPending => Err(CaError::NoCluster(dir.to_owned()).into()),
        Standing::Begun(_) => Err(StartError::Begun),
        Standing::Overtaken(_, life) => Err(StartError::Overtaken(life)),
        Standing::Removed(seat) => {
            // It may have been killed before it had done that.
            seat::drop_keys(dir, &seat)?;
            Err(StartError::Removed)
        }
    }
}

/// The place with the content key that is there, or with a new one, if that does no harm; else as it is.
fn with_content_key(dir: &Path, engine: Engine, seat: Seat) -> Result<Seat, StartError> {
    match verify_content_key(dir, seat.identity.content_key) {
        Err(CaError::ContentKeyMissing(_) | CaError::ContentKeyReplaced { .. })
            if alone::has_no_sealed_content(dir, engine, &seat) =>
        {
            let identity = ManagerIdentity { content_key: adopt_content_key(dir)?, ..seat.identity };
            let seat = Seat { identity, ..seat };
            seat::take(dir, &seat)?;
            Ok(seat)
        }
        // What is wrong with it is told with the other keys.
        _ => Ok(seat),
    }
}
