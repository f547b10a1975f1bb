//! Every message in every version, from outside: see the modules. One binary, since each would instantiate all codecs.

mod contents;
mod golden;
mod mutated;
mod oracle;
mod random;
mod streamed;
mod table;
mod views;
