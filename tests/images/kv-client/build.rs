//! Links the binary as an image.

fn main() {
    isola_image_link::emit();
}
