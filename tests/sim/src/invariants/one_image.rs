//! Every task of a revision runs the same image, whatever its tag means where it runs.

use std::collections::BTreeMap;

use warren_types::{ImageDigest, ServiceId, TaskId};

use crate::worker::Remains;

/// What the image of a revision was where its first container was made.
#[derive(Debug, Default)]
pub struct Images(BTreeMap<(ServiceId, u64), ImageDigest>);

impl Images {
    /// What is there for a task now.
    pub fn used(&mut self, task: TaskId, remains: &Remains) -> Result<(), String> {
        let Some(image) = &remains.image else { return Ok(()) };
        let revision = remains.assignment.revision;
        let first = self.0.entry((task.service, revision)).or_insert_with(|| image.clone());
        if first == image {
            return Ok(());
        }
        Err(format!(
            "one image per revision: {task} of revision {revision} runs {image}, another ran {first}"
        ))
    }
}
