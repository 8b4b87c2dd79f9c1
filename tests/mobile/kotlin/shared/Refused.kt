package app

import edgepack.runtime.*

/** What an app must not write: it names what is for generated code alone. */
internal fun close(model: OpenModel) = model.close()
