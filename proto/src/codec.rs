//! How messages are put into frames: as `tonic-prost` does it, with buffers that fit them.
//!
//! A manager has as many streams as workers, on which little is said, and little at a time. The usual buffers of 8 KiB,
//! one for each way, would be most of what such a stream takes.

use std::marker::PhantomData;

use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, EncodeBuf, Encoder};
use tonic_prost::ProstDecoder;

/// What a stream's buffers have at first; they grow with what passes through them.
const FIRST: usize = 512;
/// So much may gather before it is sent.
const GATHERED: usize = 32 << 10;

fn settings() -> BufferSettings {
    BufferSettings::new(FIRST, GATHERED)
}

/// Writes `T` and reads `U`.
#[derive(Debug, Clone)]
pub struct Frugal<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Frugal<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Frugal<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Exact<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Exact<T> {
        Exact(PhantomData)
    }

    fn decoder(&mut self) -> ProstDecoder<U> {
        ProstDecoder::new(settings())
    }
}

/// Asks for the room that a message takes before it writes it: piece by piece, the buffer would double.
#[derive(Debug, Clone)]
pub struct Exact<T>(PhantomData<T>);

impl<T: Message> Encoder for Exact<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.reserve(item.encoded_len());
        item.encode(buffer).expect("there is always room in what grows");
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        settings()
    }
}
