//! Every task of a revision runs the same image, even if the tag resolves differently on its node.

use std::collections::BTreeMap;

use warren_types::{ImageDigest, ServiceId, TaskId};

use crate::worker::TaskOnMachine;

/// The image of each revision on the node where its first container was created.
#[derive(Debug, Default)]
pub struct RevisionImages(BTreeMap<(ServiceId, u64), ImageDigest>);

impl RevisionImages {
    /// Compares the image of a task's container with the first one of its revision.
    pub fn record(&mut self, task: TaskId, remains: &TaskOnMachine) -> Result<(), String> {
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
