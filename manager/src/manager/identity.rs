//! Which manager a directory is of. What its files say of that must agree before anything is written.

use std::path::Path;
use std::time::SystemTime;

use warren_log::Engine;

use super::StartError;
use crate::ca::{
    CaError, IssuedCertificates, Keys, adopt_content_key, verify_certificates, verify_content_key,
};
use crate::recovery::alone;
use crate::recovery::seat::{self, ManagerIdentity, Seat, Standing};

/// The keys and the place of the manager in `dir`, which is made where there is none and `create` allows it. What was
/// issued again is to be saved once the log and the snapshot have been opened: they may be of another manager.
pub(super) fn identify(
    dir: &Path,
    create: bool,
    engine: Engine,
    now: SystemTime,
) -> Result<(Keys, IssuedCertificates, Seat), StartError> {
    let Some(seat) = seated(dir, create)? else {
        seat::begin_init(dir)?;
        let keys = Keys::open(dir, true, now)?;
        let seat = Seat::first(keys.identity());
        seat::take(dir, &seat)?;
        return Ok((keys, IssuedCertificates::default(), seat));
    };
    let seat = with_content_key(dir, engine, seat)?;
    let (keys, issued) = Keys::prepare(dir, false, now)?;
    Ok((keys, issued, seat))
}

/// Which manager the directory is of; `None` where `manager init` may make it the first one of its cluster.
fn seated(dir: &Path, create: bool) -> Result<Option<Seat>, StartError> {
    match seat::look(dir)? {
        Standing::Seated(seat) => Ok(Some(seat)),
        Standing::Nothing | Standing::InitPending if create => Ok(None),
        Standing::Nothing | Standing::InitPending => Err(CaError::NoCluster(dir.to_owned()).into()),
        Standing::Begun(_) => Err(StartError::Begun(seat::join_key_path(dir))),
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
    let known = verify_content_key(dir, seat.identity.content_key);
    if !matches!(known, Err(CaError::ContentKeyMissing(_) | CaError::ContentKeyReplaced { .. })) {
        // What else is wrong with it is told with the other keys.
        return Ok(seat);
    }
    verify_certificates(dir, &seat)?;
    if !alone::has_no_sealed_content(dir, engine, &seat) {
        return Ok(seat);
    }
    let identity = ManagerIdentity { content_key: adopt_content_key(dir)?, ..seat.identity };
    let seat = Seat { identity, ..seat };
    seat::take(dir, &seat)?;
    Ok(seat)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::joining;

    #[test]
    fn machine_that_began_to_join_is_told_the_file_and_the_way_back() {
        let dir = tempfile::tempdir().unwrap();
        joining::begin(dir.path()).unwrap();
        for create in [true, false] {
            let refused = identify(dir.path(), create, Engine::default(), SystemTime::now()).unwrap_err();
            let (error, path) = (refused.to_string(), seat::join_key_path(dir.path()));
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("`warren manager join`") && error.contains("begin anew"), "{error}");
        }
    }
}
