//! containerd's records of image names: a name, its target, and labels.

use std::collections::HashMap;

use containerd_client::services::v1 as api;
use containerd_client::types;
use warren_registry::{Digest, Reference};
use warren_types::Timestamp;

use super::ImageStore;
use crate::connection::{CallError, with_deadline};
use crate::document::Descriptor;
use crate::error::Error;
use crate::store::{COLLECT_TIMEOUT, RECORD_TIMEOUT};

/// A record may appear or disappear between two calls; this many attempts are made.
const MAX_RACES: usize = 3;

/// containerd's record of one image name.
#[derive(Clone, Debug)]
pub(super) struct ImageRecord {
    pub name: String,
    pub target: Descriptor,
    pub labels: HashMap<String, String>,
    pub created: Timestamp,
    /// When its target or a label changed last.
    pub updated: Timestamp,
}

impl TryFrom<api::Image> for ImageRecord {
    type Error = Error;

    fn try_from(image: api::Image) -> Result<Self, Error> {
        let target = image.target.unwrap_or_default();
        let digest =
            Digest::parse(&target.digest).map_err(|error| Error::document(image.name.clone(), error))?;
        let size = u64::try_from(target.size).unwrap_or(0);
        Ok(Self {
            target: Descriptor::new(&target.media_type, digest, size),
            created: timestamp(image.created_at),
            updated: timestamp(image.updated_at),
            name: image.name,
            labels: image.labels,
        })
    }
}

fn timestamp(at: Option<prost_types::Timestamp>) -> Timestamp {
    let at = at.unwrap_or_default();
    let millis = u64::try_from(at.seconds).unwrap_or(0).saturating_mul(1000);
    Timestamp(millis.saturating_add(u64::try_from(at.nanos / 1_000_000).unwrap_or(0)))
}

impl ImageStore {
    /// The record that matches a reference. A reference with a digest matches any tag of its repository
    /// that has, or had, that digest.
    pub(super) async fn find(&self, reference: &Reference) -> Result<Option<ImageRecord>, Error> {
        let Some(digest) = reference.digest() else { return self.record(&reference.record_name()).await };
        let mut found = self.records(vec![format!("target.digest==\"{digest}\"")]).await?;
        let own = reference.record_name();
        found.retain(|each| {
            each.name == own
                || Reference::parse(&each.name).is_ok_and(|other| other.shares_repository(reference))
        });
        let tagged = |each: &ImageRecord| each.name == reference.to_string();
        found.sort_by_key(|each| (each.name != own, !tagged(each), each.name.clone()));
        Ok(found.into_iter().next())
    }

    /// The target of a reference in this store.
    pub(crate) async fn target(&self, reference: &Reference) -> Result<Option<Descriptor>, Error> {
        Ok(self.find(reference).await?.map(|record| record.target))
    }

    async fn record(&self, name: &str) -> Result<Option<ImageRecord>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::GetImageRequest { name: name.to_owned() });
        match with_deadline(RECORD_TIMEOUT, connection.images().get(request)).await {
            Ok(reply) => ImageRecord::try_from(reply.image.unwrap_or_default()).map(Some),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(None),
            Err(status) => Err(Error::from_status(format!("look up image {name}"), &status)),
        }
    }

    /// Records that match one of the containerd filters; all without a filter.
    pub(super) async fn records(&self, filters: Vec<String>) -> Result<Vec<ImageRecord>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::ListImagesRequest { filters });
        let reply = with_deadline(RECORD_TIMEOUT, connection.images().list(request))
            .await
            .map_err(|status| Error::from_status("list images", &status))?;
        let readable = |image: api::Image| {
            // Another tool may have stored an unsupported digest algorithm.
            ImageRecord::try_from(image)
                .map_err(|error| tracing::debug!(%error, "skipped an image record"))
                .ok()
        };
        Ok(reply.images.into_iter().filter_map(readable).collect())
    }

    /// Sets the target of a name. The previous target keeps a record by its digest: tasks bound to it may
    /// start again on a node that could not pull it.
    pub(super) async fn set_target(&self, name: &Reference, target: &Descriptor) -> Result<(), Error> {
        let record = name.record_name();
        for _ in 0..MAX_RACES {
            if self.create(&record, target, HashMap::new()).await? {
                return Ok(());
            }
            let Some(old) = self.record(&record).await? else { continue };
            if old.target.digest == target.digest {
                return Ok(());
            }
            let kept = name.with_digest(&old.target.digest).record_name();
            self.create(&kept, &old.target, old.labels).await?;
            if self.update(&record, target, HashMap::new(), "target").await? {
                return Ok(());
            }
        }
        let reason = "another process keeps creating and removing it".to_owned();
        Err(Error::Refused { action: format!("move the image name {record}"), reason })
    }

    /// Returns whether the record was created; `false` if it existed.
    async fn create(
        &self,
        name: &str,
        target: &Descriptor,
        labels: HashMap<String, String>,
    ) -> Result<bool, Error> {
        let connection = &self.store.connection;
        let image = Some(record_message(name, target, labels));
        let request = connection.request(api::CreateImageRequest { image, source_date_epoch: None });
        match with_deadline(RECORD_TIMEOUT, connection.images().create(request)).await {
            Ok(_) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::AlreadyExists => Ok(false),
            Err(status) => Err(Error::from_status(format!("create the image name {name}"), &status)),
        }
    }

    /// Changes one field of a record. Returns whether the record exists.
    pub(super) async fn update(
        &self,
        name: &str,
        target: &Descriptor,
        labels: HashMap<String, String>,
        field: &str,
    ) -> Result<bool, Error> {
        let connection = &self.store.connection;
        let update_mask = Some(prost_types::FieldMask { paths: vec![field.to_owned()] });
        let image = Some(record_message(name, target, labels));
        let message = api::UpdateImageRequest { image, update_mask, source_date_epoch: None };
        match with_deadline(RECORD_TIMEOUT, connection.images().update(connection.request(message))).await {
            Ok(_) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("change the image name {name}"), &status)),
        }
    }

    /// Removes a name, and immediately what no other name or container needs. Returns whether the name
    /// existed. With a digest it removes only the name of that digest; a tag with the same target is kept.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn remove(&self, reference: &Reference) -> Result<bool, Error> {
        self.remove_listed(&reference.record_name()).await
    }

    /// As [`ImageStore::remove`], by the name in a [`super::ListedImage`], which another tool may have written.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn remove_listed(&self, name: &str) -> Result<bool, Error> {
        self.last_uses.lock().expect("no holder panics").retain(|_, touched| touched.record != name);
        let connection = &self.store.connection;
        let message = api::DeleteImageRequest { name: name.to_owned(), sync: true, ..Default::default() };
        match with_deadline(COLLECT_TIMEOUT, connection.images().delete(connection.request(message))).await {
            Ok(()) => Ok(true),
            Err(status) if CallError::from_status(&status) == CallError::NotFound => Ok(false),
            Err(status) => Err(Error::from_status(format!("remove image {name}"), &status)),
        }
    }
}

fn record_message(name: &str, target: &Descriptor, labels: HashMap<String, String>) -> api::Image {
    let target = types::Descriptor {
        media_type: target.media_type.clone(),
        digest: target.digest.to_string(),
        size: i64::try_from(target.size).unwrap_or(i64::MAX),
        ..Default::default()
    };
    api::Image { name: name.to_owned(), target: Some(target), labels, ..Default::default() }
}
