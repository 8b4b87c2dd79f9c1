// What follows is compiled only where the models share their code: types of one model are those of the others.
func sum(_ tensors: [Tensor<Float>]) -> Float { tensors.flatMap(\.scalars).reduce(0, +) }
let picture: RGBImage = try DynamicBatch.RGBImage(width: 37, height: 23, pixels: pixels)
let again = try detector.predictSync(picture).answers
let joined = try sum([classes.scores, vectors.hidden])
precondition(again == objects && joined.isFinite && Detector.Detection.self == Text.Detection.self)
