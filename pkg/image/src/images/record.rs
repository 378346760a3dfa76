//! containerd's records of image names: a name, what it points to, and labels.

use std::collections::HashMap;

use containerd_client::services::v1 as api;
use containerd_client::types;
use warren_types::Timestamp;

use super::Images;
use crate::connection::{Fault, within};
use crate::digest::Digest;
use crate::document::Descriptor;
use crate::error::Error;
use crate::reference::Reference;
use crate::store::{COLLECT, RECORD};

/// A record may come and go between two looks, by another hand; this often it is looked at again.
const LOOKS: usize = 3;

/// What containerd keeps of one image name.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub name: String,
    pub target: Descriptor,
    pub labels: HashMap<String, String>,
    pub created: Timestamp,
    /// When its target or a label changed last.
    pub changed: Timestamp,
}

impl TryFrom<api::Image> for Record {
    type Error = Error;

    fn try_from(image: api::Image) -> Result<Self, Error> {
        let target = image.target.unwrap_or_default();
        let digest =
            Digest::parse(&target.digest).map_err(|error| Error::document(image.name.clone(), error))?;
        let size = u64::try_from(target.size).unwrap_or(0);
        Ok(Self {
            target: Descriptor::new(&target.media_type, digest, size),
            created: timestamp(image.created_at),
            changed: timestamp(image.updated_at),
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

impl Images {
    /// The record that stands for a reference. One with a digest is found under whatever tag of its
    /// repository has that digest, or had it once.
    pub(super) async fn find(&self, reference: &Reference) -> Result<Option<Record>, Error> {
        let Some(digest) = reference.digest() else { return self.record(&reference.record()).await };
        let mut found = self.records(vec![format!("target.digest==\"{digest}\"")]).await?;
        let own = reference.record();
        found.retain(|each| {
            each.name == own
                || Reference::parse(&each.name).is_ok_and(|other| other.shares_repository(reference))
        });
        let tagged = |each: &Record| each.name == reference.to_string();
        found.sort_by_key(|each| (each.name != own, !tagged(each), each.name.clone()));
        Ok(found.into_iter().next())
    }

    /// What a reference points to here.
    pub(crate) async fn target(&self, reference: &Reference) -> Result<Option<Descriptor>, Error> {
        Ok(self.find(reference).await?.map(|record| record.target))
    }

    async fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::GetImageRequest { name: name.to_owned() });
        match within(RECORD, connection.images().get(request)).await {
            Ok(reply) => Record::try_from(reply.image.unwrap_or_default()).map(Some),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(None),
            Err(status) => Err(Error::of(format!("look up image {name}"), &status)),
        }
    }

    /// The records that one of containerd's filters lets through; all of them without a filter.
    pub(super) async fn records(&self, filters: Vec<String>) -> Result<Vec<Record>, Error> {
        let connection = &self.store.connection;
        let request = connection.request(api::ListImagesRequest { filters });
        let reply = within(RECORD, connection.images().list(request))
            .await
            .map_err(|status| Error::of("list images", &status))?;
        let readable = |image: api::Image| {
            // Another tool may have stored what has a digest of another kind, which no node of ours runs.
            Record::try_from(image)
                .map_err(|error| tracing::debug!(%error, "an image record is skipped"))
                .ok()
        };
        Ok(reply.images.into_iter().filter_map(readable).collect())
    }

    /// Lets a name point to an image. When it pointed to another one before, that one keeps a record by its
    /// digest: tasks that were bound to it may start again on a node that could not pull it.
    pub(crate) async fn point(&self, name: &Reference, target: &Descriptor) -> Result<(), Error> {
        let record = name.record();
        for _ in 0..LOOKS {
            if self.create(&record, target, HashMap::new()).await? {
                return Ok(());
            }
            let Some(old) = self.record(&record).await? else { continue };
            if old.target.digest == target.digest {
                return Ok(());
            }
            let kept = name.pinned(&old.target.digest).record();
            self.create(&kept, &old.target, old.labels).await?;
            if self.update(&record, target, HashMap::new(), "target").await? {
                return Ok(());
            }
        }
        let reason = "somebody else makes and removes it all the time".to_owned();
        Err(Error::Refused { action: format!("move the image name {record}"), reason })
    }

    /// Says whether there was no such record before.
    async fn create(
        &self,
        name: &str,
        target: &Descriptor,
        labels: HashMap<String, String>,
    ) -> Result<bool, Error> {
        let connection = &self.store.connection;
        let image = Some(message(name, target, labels));
        let request = connection.request(api::CreateImageRequest { image, source_date_epoch: None });
        match within(RECORD, connection.images().create(request)).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::AlreadyExists => Ok(false),
            Err(status) => Err(Error::of(format!("create the image name {name}"), &status)),
        }
    }

    /// Changes one field of a record. Says whether there was such a record.
    pub(super) async fn update(
        &self,
        name: &str,
        target: &Descriptor,
        labels: HashMap<String, String>,
        field: &str,
    ) -> Result<bool, Error> {
        let connection = &self.store.connection;
        let update_mask = Some(prost_types::FieldMask { paths: vec![field.to_owned()] });
        let image = Some(message(name, target, labels));
        let message = api::UpdateImageRequest { image, update_mask, source_date_epoch: None };
        match within(RECORD, connection.images().update(connection.request(message))).await {
            Ok(_) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("change the image name {name}"), &status)),
        }
    }

    /// Removes a name, and at once what no other name or container needs. Says whether there was such a
    /// name: the second time there is not. With a digest it is the name of that digest alone; a tag that
    /// points to the same content stays.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn remove(&self, reference: &Reference) -> Result<bool, Error> {
        self.remove_listed(&reference.record()).await
    }

    /// As [`Images::remove`], by the name in a [`super::Listed`], which need not be one that this crate
    /// would give.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn remove_listed(&self, name: &str) -> Result<bool, Error> {
        self.touched.lock().expect("no holder panics").retain(|_, touched| touched.record != name);
        let connection = &self.store.connection;
        let message = api::DeleteImageRequest { name: name.to_owned(), sync: true, ..Default::default() };
        match within(COLLECT, connection.images().delete(connection.request(message))).await {
            Ok(()) => Ok(true),
            Err(status) if Fault::of(&status) == Fault::NotFound => Ok(false),
            Err(status) => Err(Error::of(format!("remove image {name}"), &status)),
        }
    }
}

fn message(name: &str, target: &Descriptor, labels: HashMap<String, String>) -> api::Image {
    let target = types::Descriptor {
        media_type: target.media_type.clone(),
        digest: target.digest.to_string(),
        size: i64::try_from(target.size).unwrap_or(i64::MAX),
        ..Default::default()
    };
    api::Image { name: name.to_owned(), target: Some(target), labels, ..Default::default() }
}
